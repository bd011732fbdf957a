"""Settings of the local loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
