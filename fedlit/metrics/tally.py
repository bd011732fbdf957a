"""What a set of scores comes to without the scores: counts, AUROC, and histograms from which AUROC can be pooled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlit.metrics.auroc import ClassAUROC, class_auroc

BINS = 1000
"""Bins of a histogram, the same for every class, model and site."""

LARGEST, FINE = 20.0, 0.5
"""Logits beyond the largest fall into the outermost bins; bins are of equal width up to about ``FINE``, then wider."""


@dataclass(eq=False)
class Tally:
    """What may be told of the scores of some images.

    Attributes:
        auroc: [C] float64, exact; NaN where a class has no positives or no negatives, or is not told.
        positives: [C, 1000] int64, number of positive images in each bin of the logits; zeros where a class is not told.
        negatives: [C, 1000] int64, likewise.
    """

    auroc: Tensor
    positives: Tensor
    negatives: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, classes: Sequence[str], counts_below: int = 0) -> "Tally":
        """Count scores.

        Args:
            scores: [N, C] logits.
            labels: [N, C] in {0, 1, NaN}.
            classes: Names of the C columns.
            counts_below: A class with fewer positives or fewer negatives than this is not told.

        Raises:
            ValueError: The same as of :func:`fedlit.metrics.auroc.auroc`.
        """
        exact, bins = class_auroc(scores, labels, classes), bin_of(scores.cpu())
        both = [torch.zeros(len(classes), BINS, dtype=torch.int64) for _ in range(2)]
        for counts, label in zip(both, (1, 0), strict=True):
            ones = (labels.cpu() == label).long()
            counts.scatter_add_(1, bins.T, ones.T)
        tally = cls(exact.auroc, *both)
        tally.mask_classes(
            [min(pair) < counts_below for pair in zip(exact.n_pos.tolist(), exact.n_neg.tolist(), strict=True)]
        )
        return tally

    def mask_classes(self, columns: Sequence[bool]) -> None:
        """Leave out what is said of some classes."""
        gone = torch.tensor(columns)
        self.auroc[gone] = torch.nan
        self.positives[gone] = self.negatives[gone] = 0

    def class_auroc(self, classes: Sequence[str]) -> ClassAUROC:
        """Give AUROC and support of the classes, as they are of the scores themselves."""
        return ClassAUROC(tuple(classes), self.auroc, self.positives.sum(1), self.negatives.sum(1))


def bin_of(scores: Tensor) -> Tensor:
    """Number of the bin of each logit, from 0 to 999: equal widths of asinh(logit / 0.5), from -20 to 20."""
    share = (scores.double() / FINE).asinh() / math.asinh(LARGEST / FINE)
    return ((share + 1) / 2 * BINS).floor().long().clamp(0, BINS - 1)


def pooled_auroc(
    tallies: Sequence[Tally], classes: Sequence[str], hidden: Sequence[int] | None = None
) -> tuple[ClassAUROC, Tensor]:
    """Rank the images of several tallies together.

    A pair of images in one bin counts half, as a tie. So AUROC of the scores themselves is at most half the share of such
    pairs away, if all images are counted. Of hidden images nothing is assumed: each may be positive, negative or
    unlabelled, and each pair that it is part of may be won or lost. The bound then is the worst case of these.

    Args:
        tallies: Of different images.
        classes: Names of the C classes.
        hidden: [C] number of images whose labels and scores no tally counts; by default none.

    Returns:
        AUROC and support of each class among the images that are counted, and how far the exact AUROC of all images may
        be away, [C] float64; NaN where there is none.
    """
    positives, negatives = (sum(getattr(tally, name) for tally in tallies) for name in ("positives", "negatives"))
    below = negatives.cumsum(1) - negatives
    pairs = (positives.sum(1) * negatives.sum(1)).double()
    wins, ties = ((positives * counts).sum(1).double() for counts in (below, negatives))
    value = torch.where(pairs > 0, (wins + ties / 2) / pairs, torch.nan)
    n_pos, n_neg = positives.sum(1), negatives.sum(1)
    more = torch.tensor(hidden if hidden is not None else [0] * len(classes))
    # The certain wins, and the certain losses, weigh least where there are most pairs: hidden images on the rarer side.
    side = torch.minimum(torch.maximum((n_pos + n_neg + more) // 2, n_pos), n_pos + more)
    most = (side * (n_pos + n_neg + more - side)).double()
    lowest, highest = wins / most, 1 - (pairs - wins - ties) / most
    within = torch.where(pairs > 0, torch.maximum(value - lowest, highest - value), torch.nan)
    return ClassAUROC(tuple(classes), value, positives.sum(1), negatives.sum(1)), within
