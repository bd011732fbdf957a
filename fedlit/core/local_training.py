"""Bounds and corrections of local gradients, before the optimizer sees them, and the settings of local steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedlit.core.flat import Layout
from fedlit.core.messages import Mask


@dataclass(frozen=True)
class LocalTraining:
    """Settings of the local loop.

    Args:
        optimizer_state: A client's optimizer state between its rounds: ``reset``, or ``keep``.
        gradient_clip: Largest norm of a local gradient; unbounded by default.
        gradient_clamp: Largest absolute value of an element of a local gradient; unbounded by default.
        measure_batches: Number of batches of each client in a measuring round.
        channels_last: Whether convolutions compute in that memory format.
        compiled: Whether the module's forward pass is compiled.
    """

    optimizer_state: str = "reset"
    gradient_clip: float | None = None
    gradient_clamp: float | None = None
    measure_batches: int = 32
    channels_last: bool = False
    compiled: bool = False

    @property
    def bounds(self) -> bool:
        """True if gradients are clipped or clamped."""
        return self.gradient_clip is not None or self.gradient_clamp is not None

    def bound(self, gradient: Tensor, optimized: Sequence[slice], network: Sequence[slice]) -> None:
        """Clip a gradient's norm, or clamp its elements, in place.

        Args:
            gradient: [P].
            optimized: The elements that the optimizer updates, whose norm is clipped.
            network: The elements that are not an objective's variables, which are clamped.
        """
        if self.gradient_clip is not None:
            counted = [gradient[segment] for segment in optimized]
            norm = counted[0].norm() if len(counted) == 1 else torch.stack([part.norm() for part in counted]).norm()
            gradient.mul_((self.gradient_clip / (norm + 1e-6)).clamp(max=1.0))
        else:
            for segment in network:
                gradient[segment].clamp_(-self.gradient_clamp, self.gradient_clamp)


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
