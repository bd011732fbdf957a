"""Checkpoints of a federation, their manifest, and clients' states in files."""
