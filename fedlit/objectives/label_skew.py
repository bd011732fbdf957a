"""Losses that know how often their client has each class: FedLC and FedRS."""

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlit.core.errors import TrainingError
from fedlit.core.objective import Objective
from fedlit.core.ranges import NonNegative, Probability


class LabelSkewLoss(Objective):
    """Cross-entropy of logits that are adjusted to the labels of the client that trains.

    The counts of positives and of negatives [2, C] are the client's own: they come from the labels of its whole
    training set, stay with it, and act in training mode only. Elsewhere, as in validation, this is plain cross-entropy.

    Args:
        form: ``sigmoid`` for images with any number of classes, ``softmax`` for exactly one class per image.
    """

    counts: Tensor

    def __init__(self, form: Literal["sigmoid", "softmax"]) -> None:
        super().__init__()
        self.form = form

    def build(self, num_classes: int) -> None:
        """Create the counts [2, C]; equal ones leave the logits as they are."""
        self.register_buffer("counts", torch.ones(2, num_classes, dtype=torch.long))

    def settle_client(self, labels: Tensor) -> None:
        """Count the client's positives and negatives of each class."""
        self.counts.copy_(torch.stack([(labels == 1).sum(0), (labels == 0).sum(0)]))

    @abstractmethod
    def adjusted(self, logits: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Return adjusted logits [B, C], and whether each class [C] counts, given the client's counts [C]."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``logits`` [B, C] for ``labels`` [B, C] in {0, 1, NaN}; 0 if no label counts.

        Raises:
            TrainingError: In the form ``softmax``, an image has several classes.
        """
        counting = torch.ones_like(self.counts[0], dtype=torch.bool)
        if self.training:
            logits, counting = self.adjusted(logits, *self.counts)
        known, positive = ~labels.isnan(), labels == 1
        if self.form == "sigmoid":
            terms = F.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")
            return torch.where(known & counting, terms, 0.0).sum() / known.sum().clamp(min=1)
        if (positive.sum(1) > 1).any():
            raise TrainingError(
                f"{type(self).__name__}: expected one class per image, found an image with several; use form: sigmoid"
            )
        logs = logits.masked_fill(~(known & counting), torch.finfo(logits.dtype).min / 2).log_softmax(1)
        return -torch.where(positive, logs, 0.0).sum() / positive.any(1).sum().clamp(min=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax, or the sigmoids, of logits [B, C]."""
        return logits.softmax(1) if self.form == "softmax" else logits.sigmoid()


class FedLC(LabelSkewLoss):
    """FedLC (Zhang et al., ICML 2022, arXiv:2209.00189): cross-entropy of calibrated logits, by a client's own counts.

    ::

        - log ( exp(f_y - tau n_y^(-1/4)) / sum_c exp(f_c - tau n_c^(-1/4)) )             softmax
        BCE (f_c - tau (n_c^(-1/4) - m_c^(-1/4)), y_c), the mean over labels              sigmoid

    n_c counts the client's positives of class c, and m_c its negatives. Rare classes get a larger margin, and a class
    that the client does not have is left out of the sum. ``sigmoid`` is an extension: each class is the paper's problem
    with the two classes yes and no, in which a class without positives, or without negatives, neither adds loss nor
    gradient. It acts in training; validation logs plain cross-entropy.

    The sum has the image's own class y, as in public code (FL-bench, fluke): summed over the other classes alone, the
    loss would have no lower bound. Some public code counts the labels of each batch, or puts 10^-8 for a count of 0,
    which leaves an absent class in the sum with a margin of 100 tau.

    Args:
        tau: Strength of the margins, at least 0; 0 is cross-entropy over the classes that the client has.
        form: ``sigmoid`` for images with any number of classes, ``softmax`` (the paper) for one class per image.

    Raises:
        ConfigError: tau is negative or infinite; in training with ``softmax``, an image has several classes.
    """

    def __init__(self, tau: NonNegative = 1.0, form: Literal["sigmoid", "softmax"] = "sigmoid") -> None:
        super().__init__(form)
        self.tau = tau

    def adjusted(self, logits: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Subtract each class's margin."""
        margins = positives.clamp(min=1).to(logits.dtype) ** -0.25
        if self.form == "softmax":
            return logits - self.tau * margins, positives > 0
        margins = margins - negatives.clamp(min=1).to(logits.dtype) ** -0.25
        return logits - self.tau * margins, (positives > 0) & (negatives > 0)


class FedRS(LabelSkewLoss):
    """FedRS (Li and Zhan, KDD 2021): a restricted softmax, which spares the classes that a client does not have.

    ::

        - log ( exp(a_y f_y) / sum_c exp(a_c f_c) ),   a_c = 1 if the client has class c, else alpha         softmax
        BCE (a_c f_c, y_c), the mean over labels                                                             sigmoid

    The head's rows of absent classes are then pushed away less. ``sigmoid`` is an extension, in which a client has
    a class if it has a positive. It acts in training; validation logs plain cross-entropy. If every client has every
    class, or with alpha = 1, it is cross-entropy.

    Args:
        alpha: Factor of the logits of absent classes, in [0, 1].
        form: ``sigmoid`` for images with any number of classes, ``softmax`` (the paper) for one class per image.

    Raises:
        ConfigError: alpha is out of range; in training with ``softmax``, an image has several classes.
    """

    def __init__(self, alpha: Probability = 0.5, form: Literal["sigmoid", "softmax"] = "sigmoid") -> None:
        super().__init__(form)
        self.alpha = alpha

    def adjusted(self, logits: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Scale the logits of absent classes."""
        return torch.where(positives > 0, logits, self.alpha * logits), torch.ones_like(positives, dtype=torch.bool)
