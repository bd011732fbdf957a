"""Tracking of runs. Nothing here imports MLflow before a run starts."""

from fedlit.tracking.base import MetricsFile, RunInfo, Tracker
from fedlit.tracking.mlflow import MLflowTracker

__all__ = ["MLflowTracker", "MetricsFile", "RunInfo", "Tracker"]
