"""Surgical aggregation: Kulkarni et al., arXiv:2301.06683."""
