"""Multi-label binary cross-entropy."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlit.core.objective import Loss


class BCE(Loss):
    """Binary cross-entropy of each class, averaged over the known labels.

    A NaN label (a class that the client does not label, an uncertain report) adds neither loss nor gradient. If a
    client labels the classes C_k and nothing else is missing, the value is the mean over B x |C_k| terms.
    ``missing: negative`` treats such labels as 0, in validation too: as the objective of a phase it is the head's
    warm-up of surgical aggregation's released code, whose partial loss begins after it.

    Args:
        missing: Labels that are NaN: ``ignore``, or ``negative``.

    Raises:
        ConfigError: Another value of ``missing``.
    """

    objective_label = ""
    """Its part of the names of methods; for any other loss, this is the name of its class."""

    def __init__(self, missing: Literal["ignore", "negative"] = "ignore") -> None:
        super().__init__()
        self.missing = missing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``logits`` [B, C] for ``labels`` [B, C] in {0, 1, NaN}; 0 if no label counts."""
        labels = labels.nan_to_num() if self.missing == "negative" else labels
        known = ~labels.isnan()
        terms = F.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")
        return torch.where(known, terms, 0.0).sum() / known.sum().clamp(min=1)
