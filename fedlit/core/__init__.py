"""One client's round on one flat vector; nothing here names an algorithm."""
