"""Configurations, the objects that they describe, and their runs."""
