"""Samplers of training batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedlit.core.errors import DataError
from fedlit.core.ranges import Fraction
from fedlit.core.system.argument_types import checked

if TYPE_CHECKING:
    from torch import Generator, Tensor


@checked
@dataclass(frozen=True)
class Sampler:
    """Batches with a share of positives: a fixed one of one class, or an equal one of each class.

    A pass has as many batches as without a sampler, of the same sizes. With ``positives``, as LibAUC's ``DualSampler``
    draws them for data of one class, the share is rounded to whole images, at least one positive and one negative.
    With ``balance: classes``, the images that are positive for a class that the client labels are a group, and those
    that are positive for none are one more. Each group has the same number of places in every batch, up to one. An
    image that is positive for two classes is in both groups; if there are more groups than places, they take turns.

    Each group is drawn as consecutive permutations, so a rare positive is seen several times in a pass, and as many
    other images are left out. A client with one group has the usual batches. (LibAUC's pass is longer: it ends when all
    negatives have been seen.)

    Weights of clients, epochs, and measured values (the share of positives p, statistics of BatchNorm) remain those of
    the images. ``AUCSaddle`` equals the pairwise loss only if its p is that of the batches: set its ``prior`` to the
    same share.

    Args:
        positives: Share of positives in every batch, in (0, 1).
        balance: ``classes`` for equal shares of all classes.

    Raises:
        ValueError: Neither or both are set, or the share is not in (0, 1).
    """

    mistake: ClassVar[type] = DataError

    positives: Fraction | None = None
    balance: Literal["classes"] | None = None

    def __post_init__(self) -> None:
        if (self.positives is None) == (self.balance is None):
            raise DataError(
                "data.sampler: expected {positives: SHARE} or {balance: classes}, found "
                f"positives {self.positives} and balance {self.balance}"
            )

    def order(self, labels: Tensor, batch_size: int, draw: Generator) -> Tensor:
        """Return the rows of the images of a pass in the order of its batches, at most [n], for labels [n, C]."""
        import torch

        n, positive = len(labels), labels == 1
        groups = [*positive.T, ~positive.any(dim=1)]
        pools = [pool for group in groups if len(pool := group.nonzero()[:, 0])]
        if len(pools) < 2:
            return torch.randperm(n, generator=draw)
        sizes = [size for start in range(0, n, batch_size) if (size := min(batch_size, n - start)) > 1]
        if self.positives is not None:  # positives first, then negatives
            shares = torch.tensor([min(max(round(self.positives * size), 1), size - 1) for size in sizes])
            kinds = (torch.arange(max(sizes)) >= shares[:, None]).int()
            kinds = torch.cat([row[:size] for row, size in zip(kinds, sizes, strict=True)])
        else:
            turns = torch.randperm(len(pools), generator=draw)
            kinds = turns[torch.arange(sum(sizes)) % len(pools)]
        rows = torch.empty(sum(sizes), dtype=torch.int64)
        for kind, pool in enumerate(pools):
            places = (kinds == kind).nonzero()[:, 0]
            passes = -(-len(places) // len(pool))
            drawn = [pool[torch.randperm(len(pool), generator=draw)] for _ in range(passes)]
            rows[places] = torch.cat([pool[:0], *drawn])[: len(places)]
        return rows
