"""Samplers of training batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedlit.core.errors import DataError
from fedlit.core.ranges import Fraction
from fedlit.core.system.argument_types import checked

if TYPE_CHECKING:
    from torch import Generator, Tensor


@checked
@dataclass(frozen=True)
class Sampler:
    """Batches with a fixed share of positives, as LibAUC's ``DualSampler`` draws them, for data of one class.

    A pass has as many batches as without a sampler, of the same sizes. In each batch the share is rounded to whole
    images, at least one positive and one negative. Positives are drawn as consecutive permutations, so a rare positive
    is seen several times in a pass. A pass leaves out as many negatives as it repeats positives. A client without
    positives or without negatives has the usual batches. (LibAUC's pass is longer: it ends when all negatives have been
    seen.)

    Weights of clients, epochs, and measured values (the share of positives p, statistics of BatchNorm) remain those of
    the images. ``AUCSaddle`` equals the pairwise loss only if its p is that of the batches: set its ``prior`` to the
    same share.

    Args:
        positives: Share of positives in every batch, in (0, 1).

    Raises:
        ValueError: The share is not in (0, 1).
    """

    mistake: ClassVar[type] = DataError

    positives: Fraction

    def order(self, labels: Tensor, batch_size: int, draw: Generator) -> Tensor:
        """Return the rows of the images of a pass in the order of its batches, at most [n], for labels [n, 1]."""
        import torch

        n = len(labels)
        positive = (labels == 1).any(dim=1)
        pools = [positive.nonzero()[:, 0], (~positive).nonzero()[:, 0]]
        if not all(map(len, pools)):
            return torch.randperm(n, generator=draw)
        sizes = [size for start in range(0, n, batch_size) if (size := min(batch_size, n - start)) > 1]
        shares = [min(max(round(self.positives * size), 1), size - 1) for size in sizes]
        drawn = []
        for pool, total in zip(pools, (sum(shares), sum(sizes) - sum(shares)), strict=True):
            passes = -(-total // len(pool))
            drawn.append(torch.cat([pool[torch.randperm(len(pool), generator=draw)] for _ in range(passes)]))
        rows, at = [], [0, 0]
        for size, share in zip(sizes, shares, strict=True):
            for kind, number in enumerate((share, size - share)):
                rows.append(drawn[kind][at[kind] : at[kind] + number])
                at[kind] += number
        return torch.cat(rows)
