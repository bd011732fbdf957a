"""The ratio loss: cross-entropy in which positives weigh more."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlit.core.errors import ConfigError
from fedlit.core.messages import State
from fedlit.core.objective import Objective


class RatioLoss(Objective):
    """Ratio loss (Wang et al., AAAI 2021, arXiv:2008.06217): cross-entropy in which positives weigh by their rarity.

    A positive weighs ``a0 + b0 * negatives / positives`` and a negative 1, per class. The ratio is
    that of the whole federation's labels, measured once before the first round: of the shares of positives in the
    federation's client weights, which with n_k / n (``examples``) is the ratio of the counts. It is never a batch's or a
    client's own. The mean is over the labels that exist; a label that is NaN adds neither loss nor gradient.

    The defaults are the paper's alpha = 1 and beta = 0.1: at 10% of positives one weighs 1.9, at 1% 10.9. Deviation: the paper
    estimates the ratio from gradients, as its server knows no labels; here clients report their share of positives.

    Args:
        a0: Weight of every positive, at least 0; the paper's alpha.
        b0: Weight of a positive per negatives / positives, at least 0; the paper's beta. 0 with a0 = 1 is BCE, 1 with
            a0 = 0 balances the classes.
        prior: Share of positives if it is known, one number for all classes; measured by default.

    Raises:
        ConfigError: a0 or b0 is negative, or both are 0; a prior outside (0, 1).
    """

    metrics_help = {"objective/p": "Share of positives of a class in the whole federation."}

    def __init__(self, a0: float = 1.0, b0: float = 0.1, prior: float | None = None) -> None:
        super().__init__()
        if not (a0 >= 0 and b0 >= 0 and a0 + b0 > 0):
            raise ConfigError(f"RatioLoss: a0 and b0 must be at least 0 and not both 0, found {a0:g} and {b0:g}")
        if prior is not None and not 0 < prior < 1:
            raise ConfigError(f"RatioLoss.prior: expected a share of positives in (0, 1), found {prior:g}")
        self.a0, self.b0, self.prior = a0, b0, prior

    def build(self, num_classes: int) -> None:
        """Create the constant p [C]."""
        self.register_buffer("p", torch.full((num_classes,), float("nan") if self.prior is None else self.prior))

    @property
    def weight(self) -> Tensor:
        """Of a positive [C]; a0 for a class that has none."""
        return self.a0 + self.b0 * torch.where(self.p == 0, 0.0, (1 - self.p) / self.p)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of ``logits`` [B, C] against ``labels`` [B, C] in {0, 1, NaN}; 0 where nothing is labelled."""
        known = ~labels.isnan()
        targets = labels.nan_to_num()
        terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none", pos_weight=self.weight)
        return torch.where(known, terms, 0.0).sum() / known.sum().clamp(min=1)

    def measure(self, logits: Tensor, labels: Tensor, all_labels: Tensor) -> State:
        """Report a client's share of positives [C]."""
        labelled = ~all_labels.isnan()
        return {
            "labels": labelled.any(0).to(logits.dtype),
            "positives": (all_labels == 1).sum(0) / labelled.sum(0).clamp(min=1).to(logits.dtype),
        }

    @torch.no_grad()
    def settle(self, means: State) -> None:
        """Set p from the clients' weighted means."""
        if self.prior is None:
            means = {name: mean.to(self.p) for name, mean in means.items()}
            self.p.copy_(torch.where(means["labels"] > 0, means["positives"] / means["labels"], 0.0))
