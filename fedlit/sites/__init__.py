"""A federation across sites: what travels, what answers there, and what a site lets out."""
