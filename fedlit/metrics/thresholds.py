"""Statistics of a ranking at its thresholds, for many draws of patients at once, and the choice of a threshold.

The rates of a class change only at scores of positive images. So scores are sorted once, negatives are counted between
the scores of positives, and a draw of patients costs one addition per image: all statistics below are exact.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

ROUNDING = 1e-9
"""Tolerance of the comparison of a rate with a fixed one, such as a sensitivity of 9/10 with 0.9."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Images at the G distinct scores of positives, from the highest score down, in B draws."""

    positives: np.ndarray  # `[G, B]` positives with this score.
    above: np.ndarray  # `[G, B]` negatives with a higher score.
    at: np.ndarray  # `[G, B]` negatives with at least this score.
    negatives: np.ndarray  # `[B]` all negatives.

    @property
    def true(self) -> np.ndarray:
        """Return ``[G, B]``, the positives with at least this score."""
        return np.cumsum(self.positives, axis=0)


class Ranking:
    """Scores of one class, sorted once.

    Args:
        score: ``[N]`` finite scores.
        positive: ``[N]`` bool.
        patient: ``[N]`` number of each image's patient, from 0.
        n_patients: Number of patients P.
        kind: Type of the counts.
    """

    def __init__(
        self, score: np.ndarray, positive: np.ndarray, patient: np.ndarray, n_patients: int, kind: type = np.float32
    ) -> None:
        levels, level = np.unique(-score[positive], return_inverse=True)
        left, right = (np.searchsorted(levels, -score[~positive], side) for side in ("left", "right"))
        # Bin 2g + 1 of the negatives is on level g, bin 2g between levels g - 1 and g.
        sides = (level, positive, len(levels)), (left + right, ~positive, 2 * len(levels) + 1)
        self._positives, self._negatives = (
            sparse.csr_array((np.ones(len(row), kind), (row, patient[side])), shape=(rows, n_patients))
            for row, side, rows in sides
        )
        self.scores = -levels

    def counted(self, draws: np.ndarray) -> Counts:
        """Return the counts if patient p occurs ``draws[p, b]`` times; ``[P, B]``."""
        negatives = self._negatives @ draws
        negatives = np.cumsum(negatives, axis=0, dtype=negatives.dtype)
        return Counts(self._positives @ draws, negatives[:-1:2], negatives[1::2], negatives[-1])


def ranked(counts: Counts, sensitivity: float, specificity: float) -> dict[str, np.ndarray]:
    """Return ``[B]`` AUROC, AUPRC, the sensitivity at a fixed specificity, and the specificity at a fixed sensitivity.

    AUPRC is the average precision: the mean over positives of the precision at their score (no interpolation). Of the
    thresholds that reach the fixed rate, the best one counts. Draws without positives or negatives are NaN.
    """
    true = counts.true
    n_pos, n_neg = true[-1].astype(np.float64), counts.negatives.astype(np.float64)
    wins = np.einsum("gb,gb->b", counts.positives, counts.above + counts.at, dtype=np.float64) / 2
    precision = true / np.maximum(true + counts.at, 1)
    hits = np.where(counts.at <= (1 - specificity + ROUNDING) * n_neg, true, 0).max(0)
    false = np.where(true >= (sensitivity - ROUNDING) * n_pos, counts.at, np.inf).min(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {
            "auroc": 1 - wins / (n_pos * n_neg),
            "auprc": np.einsum("gb,gb->b", counts.positives, precision, dtype=np.float64) / n_pos,
            "sensitivity": hits / n_pos,
            "specificity": 1 - false / n_neg,
        }
    defined = (n_pos > 0) & (n_neg > 0)
    return {name: np.where(defined, value, np.nan) for name, value in values.items()}


def predictive_values(
    sensitivity: float | np.ndarray, specificity: np.ndarray, prevalence: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positive and the negative predictive value at a prevalence, by Bayes' theorem."""
    hits, misses = sensitivity * prevalence, (1 - sensitivity) * prevalence
    alarms, rejections = (1 - specificity) * (1 - prevalence), specificity * (1 - prevalence)
    with np.errstate(divide="ignore", invalid="ignore"):
        return hits / (hits + alarms), rejections / (rejections + misses)


def choose_threshold(score: np.ndarray, positive: np.ndarray, rate: str, value: float) -> float:
    """Return the threshold at which a rate reaches a value: images with at least this score are called positive.

    Args:
        score: ``[N]`` finite scores.
        positive: ``[N]`` bool.
        rate: ``sensitivity`` (then it is the highest such threshold) or ``specificity`` (the lowest such threshold
            that is the score of an image; above all scores if no image may be called positive).
        value: Value to reach, in (0, 1).

    Returns:
        The threshold; NaN if there is no image of the side that the rate is of.
    """
    ours = np.sort(score[positive == (rate == "sensitivity")])
    if not len(ours):
        return float("nan")
    if rate == "sensitivity":
        return float(ours[len(ours) - int(np.ceil(len(ours) * (value - ROUNDING)))])
    allowed = int(np.floor(len(ours) * (1 - value + ROUNDING)))
    highest_refused = ours[len(ours) - allowed - 1]
    called = score[score > highest_refused]
    return float(called.min()) if len(called) else float(np.nextafter(highest_refused, np.inf))
