"""What is kept of a federation: checkpoints, their manifest, and clients' states in files."""
