"""The ratio loss: cross-entropy in which positives weigh more."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlit.core.errors import ConfigError
from fedlit.core.ranges import Fraction, NonNegativeOrInf
from fedlit.objectives.shares import ShareObjective


class RatioLoss(ShareObjective):
    """Ratio loss (Wang et al., AAAI 2021, arXiv:2008.06217): cross-entropy in which positives weigh by their rarity.

    A positive weighs ``a0 + b0 * negatives / positives`` per class, and a negative 1; with ``weigh: both`` a negative
    weighs ``a0 + b0 * positives / negatives``, as in the paper for every class. The ratio is that of the whole
    federation's labels, measured once before the first round: the mean share of positives in the federation's client
    weights, which with n_k / n (``examples``) is the ratio of the counts. It is never that of a batch or of one client.
    The mean is over the known labels; a NaN label adds neither loss nor gradient.

    The defaults are the paper's alpha = 1 and beta = 0.1: with 10% positives each weighs 1.9, with 1% 10.9. Deviation:
    the paper estimates the ratio from gradients, as its server knows no labels; here clients report their share of
    positives. Default: LocalSCGDAM's baseline, in which only the minority class weighs more.

    Args:
        a0: Weight of every positive, at least 0; the paper's alpha.
        b0: Weight of a positive per negatives / positives, at least 0; the paper's beta. 0 with a0 = 1 is BCE, 1 with
            a0 = 0 balances the classes.
        weigh: Labels whose weight follows the ratio: ``positives``, or ``both``.
        prior: Share of positives if it is known, one number for all classes; measured by default.

    Raises:
        ConfigError: a0 or b0 is negative, or both are 0; the prior is outside (0, 1).
    """

    metrics_help = {"objective/p": "Share of positives of a class in the whole federation."}

    def __init__(
        self,
        a0: NonNegativeOrInf = 1.0,
        b0: NonNegativeOrInf = 0.1,
        prior: Fraction | None = None,
        weigh: Literal["positives", "both"] = "positives",
    ) -> None:
        super().__init__(prior)
        if a0 == b0 == 0:
            raise ConfigError("RatioLoss: expected a0 or b0 above 0, found 0 for both; every weight would be 0")
        self.a0, self.b0, self.weigh = a0, b0, weigh

    @property
    def weight(self) -> Tensor:
        """Weight of a positive [C]; a0 for a class without positives."""
        return self.a0 + self.b0 * torch.where(self.p == 0, 0.0, (1 - self.p) / self.p)

    @property
    def weight_of_negatives(self) -> Tensor:
        """Weight of a negative [C]; a0 for a class without negatives, and 1 if only positives are weighed."""
        if self.weigh == "positives":
            return torch.ones_like(self.p)
        return self.a0 + self.b0 * torch.where(self.p == 1, 0.0, self.p / (1 - self.p))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``logits`` [B, C] for ``labels`` [B, C] in {0, 1, NaN}; 0 if nothing is labelled."""
        known = ~labels.isnan()
        targets = labels.nan_to_num()
        weights = torch.where(labels == 1, self.weight, self.weight_of_negatives)
        terms = F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="none")
        return torch.where(known, terms, 0.0).sum() / known.sum().clamp(min=1)
