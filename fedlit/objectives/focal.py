"""The focal loss of images with one class each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.objective import Objective
from fedlit.core.ranges import NonNegativeOrInf, Positive


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
