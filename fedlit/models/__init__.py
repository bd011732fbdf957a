"""Models: LightningModules that clients train."""

from fedlit.models import networks  # noqa: F401  registers them with timm
from fedlit.models.classifier import ImageClassifier
from fedlit.models.linear import LogisticRegression

__all__ = ["ImageClassifier", "LogisticRegression"]
