"""Models: LightningModules that clients train."""

from fedlit.models.classifier import ImageClassifier

__all__ = ["ImageClassifier"]
