"""The correction that algorithms add to local gradients."""

from functools import cached_property

import torch
from torch import Tensor

from fedlit.core.flat import Layout
from fedlit.core.messages import Mask


class Correction:
    """Correction that all aggregators together add to every local gradient of a round: ``bias + decay * w``.

    Attributes:
        bias: [P]; add to it in place. Its memory is allocated at the first access.
        decay: [num_groups] float64, one number per group of the layout.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.decay = torch.zeros(layout.num_groups, dtype=torch.float64)
        self._spans: list[tuple[int, int, float]] = []

    @cached_property
    def bias(self) -> Tensor:
        """[P], allocated at the first access."""
        return self.layout.zeros(self.device)

    def pull(self, centre: Tensor, strength: float) -> None:
        """Add the gradient of ``strength/2 * |w - centre|^2``; dual variables are never pulled."""
        primal = slice(0, self.layout.slices["dual"].start)
        self.bias[primal].sub_(centre[primal], alpha=strength)
        self.decay[self.layout.groups(("body", "norm", "head"))] += strength

    def reset(self) -> None:
        """Start a round without any correction."""
        self.bias.zero_()
        self.decay.zero_()

    def close(self, mask: Mask) -> None:
        """Complete the round's correction: remove it where the client shares nothing; dual variables never decay."""
        for segment in mask.unshared(self.layout):
            self.bias[segment] = 0
        self.decay *= mask.owned
        self.decay[self.layout.groups(("dual",))] = 0
        self._spans = self.layout.spans(self.decay)

    def write(self, grad: Tensor, w: Tensor) -> None:
        """Set ``grad = bias + decay * w`` in one pass, before a backward pass after which the dual slice is negated."""
        for start, stop, decay in self._spans:
            if decay:
                torch.add(self.bias[start:stop], w[start:stop], alpha=decay, out=grad[start:stop])
            else:
                grad[start:stop] = self.bias[start:stop]
        grad[self.layout.slices["dual"]].neg_()

    def add_to(self, grad: Tensor, w: Tensor) -> None:
        """Compute ``grad += bias + decay * w``."""
        grad += self.bias
        for start, stop, decay in self._spans:
            grad[start:stop].add_(w[start:stop], alpha=decay)
