"""Summaries of scores: counts, AUROC, and histograms from which pooled AUROC can be computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlit.metrics.auroc import ClassAUROC, class_auroc

BINS = 1000
"""Number of histogram bins, the same for every class, model and site."""

LARGEST, FINE = 20.0, 0.5
"""Limit of the logits, beyond which the outermost bins count, and logit up to which bins have about the same width."""


@dataclass(eq=False)
class Tally:
    """Summary of the scores of some images, as a site may report it."""

    auroc: Tensor  # [C] float64, exact; NaN for classes without positives or without negatives, and unreported classes.
    # [C, 1000] int64, number of positive images in each bin of the logits; zeros for unreported classes.
    positives: Tensor
    negatives: Tensor  # [C, 1000] int64, likewise.

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, classes: Sequence[str], counts_below: int = 0) -> "Tally":
        """Return the summary of scores.

        Args:
            scores: [N, C] logits.
            labels: [N, C] in {0, 1, NaN}.
            classes: Names of the C columns.
            counts_below: Smallest number of positives and of negatives of a class that is reported.

        Raises:
            ValueError: As :func:`fedlit.metrics.auroc.auroc`.
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
        """Remove the values of some classes."""
        masked = torch.tensor(columns)
        self.auroc[masked] = torch.nan
        self.positives[masked] = self.negatives[masked] = 0

    def class_auroc(self, classes: Sequence[str]) -> ClassAUROC:
        """Return exact AUROC and support of the classes."""
        return ClassAUROC(tuple(classes), self.auroc, self.positives.sum(1), self.negatives.sum(1))


def bin_of(scores: Tensor) -> Tensor:
    """Return the bin of each logit, from 0 to 999: equal widths of asinh(logit / 0.5), from -20 to 20."""
    share = (scores.double() / FINE).asinh() / math.asinh(LARGEST / FINE)
    return ((share + 1) / 2 * BINS).floor().long().clamp(0, BINS - 1)


def pooled_auroc(
    tallies: Sequence[Tally], classes: Sequence[str], hidden: Sequence[int] | None = None
) -> tuple[ClassAUROC, Tensor]:
    """Return AUROC of the images of several tallies together, with a bound on its error.

    A pair of images in one bin counts half, as a tie. So AUROC of the scores themselves is at most half the share of
    such pairs away, if all images are counted. Of hidden images nothing is assumed: each may be positive, negative or
    unlabelled, and each pair that it is part of may be won or lost. The bound then is the worst case of these.

    Args:
        tallies: Tallies of different images.
        classes: Names of the C classes.
        hidden: [C] number of images whose labels and scores no tally counts; by default none.

    Returns:
        AUROC and support of each class for the counted images, and a bound on the difference to the exact AUROC of all
        images, [C] float64; NaN if AUROC is undefined.
    """
    positives, negatives = (sum(getattr(tally, name) for tally in tallies) for name in ("positives", "negatives"))
    below, n_pos, n_neg = negatives.cumsum(1) - negatives, positives.sum(1), negatives.sum(1)
    pairs = (n_pos * n_neg).double()
    wins, ties = ((positives * counts).sum(1).double() for counts in (below, negatives))
    value = torch.where(pairs > 0, (wins + ties / 2) / pairs, torch.nan)
    more = torch.tensor(hidden if hidden is not None else [0] * len(classes))
    # Hidden images on the rarer side give the most pairs, and so the smallest weight of certain wins and losses.
    side = torch.minimum(torch.maximum((n_pos + n_neg + more) // 2, n_pos), n_pos + more)
    most = (side * (n_pos + n_neg + more - side)).double()
    lowest, highest = wins / most, 1 - (pairs - wins - ties) / most
    within = torch.where(pairs > 0, torch.maximum(value - lowest, highest - value), torch.nan)
    return ClassAUROC(tuple(classes), value, n_pos, n_neg), within
