"""Multi-label binary cross-entropy."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BCE(nn.Module):
    """Binary cross-entropy of each class, averaged over the labels that exist.

    A label that is NaN (a class that the client does not label, an uncertain report) adds neither loss nor
    gradient. Where a client labels the classes C_k and nothing else is missing, the value is the mean over
    B x |C_k| terms.
    """

    objective_label = ""
    """What it adds to the names of methods; of any other loss that is the name of its class."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of ``logits`` [B, C] against ``labels`` [B, C] in {0, 1, NaN}; 0 where nothing is labelled."""
        known = ~labels.isnan()
        terms = F.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")
        return torch.where(known, terms, 0.0).sum() / known.sum().clamp(min=1)
