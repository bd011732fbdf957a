"""Cross-entropy: binary, of images with any number of classes, and the focal loss of images with one class each."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.objective import Loss, Objective
from fedlit.core.ranges import NonNegativeOrInf, Positive


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


class SoftmaxFocalLoss(Objective):
    """Focal loss (Lin et al., ICCV 2017, arXiv:1708.02002) over a softmax, for images of exactly one class.

    ``- alpha_y (1 - p_y)^gamma log p_y`` for the class y of an image, averaged over the images. With gamma = 0 and
    without alpha it is cross-entropy over the classes. A NaN label removes its class from the image's softmax; an image
    whose class is not known adds neither loss nor gradient. Predictions are the softmax's probabilities.

    Args:
        gamma: Exponent that reduces the weight of images whose class the model is sure of, at least 0.
        alpha: Weight of each class, in the order of the classes; by default 1.

    Raises:
        ConfigError: gamma is below 0, weights are not above 0, or their number is not that of the classes.
    """

    def __init__(self, gamma: NonNegativeOrInf = 2.0, alpha: Sequence[Positive] | None = None) -> None:
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def build(self, num_classes: int) -> None:
        """Check that each class has a weight.

        Raises:
            ConfigError: There are more or fewer weights than classes.
        """
        if self.alpha is not None and len(self.alpha) != num_classes:
            raise ConfigError(
                f"SoftmaxFocalLoss.alpha: expected a weight for each of {num_classes} classes, found {len(self.alpha)}"
            )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``logits`` [B, C] for ``labels`` [B, C] with at most one 1 per row.

        Raises:
            TrainingError: An image has several classes.
        """
        positive = labels == 1
        if (positive.sum(1) > 1).any():
            raise TrainingError(
                "SoftmaxFocalLoss: expected one class per image, found an image with several; use BCE instead"
            )
        logs = logits.masked_fill(labels.isnan(), torch.finfo(logits.dtype).min / 2).log_softmax(1)
        log = torch.where(positive, logs, 0.0).sum(1)
        weight = 1.0 if self.alpha is None else positive.to(logits.dtype) @ logits.new_tensor(self.alpha)
        terms = -weight * (1 - log.exp()) ** self.gamma * log
        known = positive.any(1)
        return torch.where(known, terms, 0.0).sum() / known.sum().clamp(min=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of logits [B, C]."""
        return logits.softmax(1)
