"""Public path of :mod:`fedlit.predictions.serving`, which models logged to MLflow refer to."""

from fedlit.predictions.serving import ImageScorer, _load_pyfunc, save_mlflow_model

__all__ = ["ImageScorer", "_load_pyfunc", "save_mlflow_model"]
