"""The public path of :mod:`fedlit.predictions.serving`, which logged models of MLflow name."""

from fedlit.predictions.serving import ImageScorer, _load_pyfunc, save_mlflow_model

__all__ = ["ImageScorer", "_load_pyfunc", "save_mlflow_model"]
