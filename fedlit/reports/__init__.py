"""What is made of finished runs: comparisons, and reproductions of papers."""
