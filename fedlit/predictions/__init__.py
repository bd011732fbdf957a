"""What a trained model says, as a table, and the model that says it, as a file."""

from fedlit.predictions.table import FOLDER, Predictions, collected, read, write

__all__ = ["FOLDER", "Predictions", "collected", "read", "write"]
