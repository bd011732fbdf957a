"""Objectives of clients: modules called with (logits [B, C], labels [B, C])."""

from fedlit.objectives.auc import AUCSaddle
from fedlit.objectives.cross_entropy import BCE, SoftmaxFocalLoss
from fedlit.objectives.label_skew import FedLC, FedRS
from fedlit.objectives.ratio import RatioLoss

__all__ = ["BCE", "AUCSaddle", "FedLC", "FedRS", "RatioLoss", "SoftmaxFocalLoss"]
