"""One client's round on one flat vector."""
