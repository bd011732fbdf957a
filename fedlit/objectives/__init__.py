"""What a client minimises: modules called with (logits [B, C], labels [B, C])."""

from fedlit.objectives.auc import AUCSaddle
from fedlit.objectives.bce import BCE

__all__ = ["BCE", "AUCSaddle"]
