"""Comparison of runs: numbers, figures and files of ``fedlit compare``."""
