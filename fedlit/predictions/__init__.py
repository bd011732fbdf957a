"""Predictions of a trained model as tables, and the model itself as a file."""

from fedlit.predictions.table import FOLDER, Predictions, collected, read, write

__all__ = ["FOLDER", "Predictions", "collected", "read", "write"]
