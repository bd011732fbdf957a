"""The share of positives of each class in the whole federation, by which objectives weigh."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedlit.core.messages import State
from fedlit.core.objective import Objective
from fedlit.core.ranges import Fraction


class ShareObjective(Objective):
    """An objective with the constant p [C], each class's share of positives: given, or measured over all clients.

    Args:
        prior: p if it is known, one number for all classes; None if it is measured. It has the module's precision.

    Raises:
        ConfigError: The prior is outside (0, 1).
    """

    p: Tensor

    def __init__(self, prior: Fraction | None) -> None:
        super().__init__()
        self.prior = prior

    @property
    def measured(self) -> bool:
        """True if p is not given."""
        return self.prior is None

    def build(self, num_classes: int) -> None:
        """Create the constant p [C]."""
        self.register_buffer("p", torch.full((num_classes,), float("nan") if self.prior is None else self.prior))

    def measure(self, logits: Tensor, labels: Tensor, all_labels: Tensor) -> State:
        """Return a client's share of positives [C]."""
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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ShareObjective":
        """Convert the module; a given prior is set again, because it has more digits in double precision."""
        super()._apply(fn, recurse)
        if self.prior is not None and "p" in self._buffers:
            self.p.fill_(self.prior)
        return self
