"""Calibration of probabilities: reliability diagram, intercept and slope; and the net benefit of using them.

Bins hold equal numbers of images: with bins of equal width, nearly all images of a rare finding are in the first.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

BINS = 10
LARGEST_LOGIT = 30.0
"""Limit of logits: a probability of 0 or 1 has none."""
STEPS = 50


def bin_edges(probability: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Return the distinct inner edges of bins with about equal numbers of images, at most ``bins - 1``."""
    return np.unique(np.quantile(probability, np.arange(1, bins) / bins))


def bin_of(probability: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the bin of each probability; equal probabilities share a bin."""
    return np.searchsorted(edges, probability, side="left")


@dataclass(frozen=True, eq=False)
class Reliability:
    """Probabilities and frequencies in the K bins that have images."""

    count: np.ndarray  # `[K]` images.
    predicted: np.ndarray  # `[K]` mean probability.
    observed: np.ndarray  # `[K]` share of positives.

    @classmethod
    def of(cls, probability: np.ndarray, positive: np.ndarray, edges: np.ndarray) -> "Reliability":
        """Bin the images of a class."""
        place, size = bin_of(probability, edges), len(edges) + 1
        count = np.bincount(place, minlength=size)
        kept = count > 0
        sums = [np.bincount(place, values, size)[kept] / count[kept] for values in (probability, positive)]
        return cls(count[kept], *sums)

    def intervals(self, place: np.ndarray, positive: np.ndarray, patient: np.ndarray, level: float) -> np.ndarray:
        """Return ``[2, K]``, Wilson's intervals of the shares, with the effective number of images for these patients.

        Args:
            place: ``[N]`` bin of each image, from 0 to K - 1.
            positive: ``[N]`` bool.
            patient: ``[N]`` number of each image's patient.
            level: Level of the intervals.
        """
        owner, pair = np.unique(np.stack([place, patient]), axis=1, return_inverse=True)
        residual = np.bincount(pair.ravel(), positive - self.observed[place])
        squares, patients = np.bincount(owner[0], residual**2), np.bincount(owner[0])
        spread = self.observed * (1 - self.observed)
        effective = np.where(squares > 0, spread * self.count**2 / np.where(squares > 0, squares, 1), patients)
        weight = stats.norm.ppf((1 + level) / 2) ** 2 / np.minimum(effective, self.count)
        half = np.sqrt(weight * spread + weight**2 / 4)
        return (self.observed + weight / 2 + np.array([[-1], [1]]) * half) / (1 + weight)


@dataclass(frozen=True, eq=False)
class Recalibration:
    """Logistic recalibration (Cox 1958; Van Calster et al. 2016), with terms from which draws are fitted."""

    intercept: float  # Intercept at slope 1: 0 if probabilities are right on average, above 0 if they are too low.
    # Slope with a free intercept: 1 if the spread of the logits is right, below 1 if they are too extreme.
    slope: float
    terms: np.ndarray  # `[N, 7]` gradients and Hessians of the two fits by image.

    @classmethod
    def of(cls, logit: np.ndarray, positive: np.ndarray) -> "Recalibration":
        """Fit the positives of a class to its logits; NaN if a fit does not exist, as with separated classes."""
        x, ones = np.clip(logit, -LARGEST_LOGIT, LARGEST_LOGIT), np.ones((len(logit), 1))
        (intercept,), first = _fitted(ones, x, positive)
        (_, slope), second = _fitted(np.column_stack([ones, x]), np.zeros_like(x), positive)
        return cls(intercept, slope, np.column_stack([first, second]).astype(np.float32))

    def draws(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Return ``[B]`` intercepts and slopes of draws, by one Newton step from the fit (Moulton and Zeyen 1991).

        Args:
            sums: ``[7, B]`` sums of the terms over the images of each draw.
        """
        g, h, ga, gb, aa, ab, bb = sums.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {"intercept": self.intercept + g / h, "slope": self.slope + (aa * gb - ab * ga) / (aa * bb - ab**2)}


def _fitted(design: np.ndarray, offset: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``[k]`` maximum-likelihood coefficients and each image's gradient and Hessian there."""
    beta, pairs = np.zeros(design.shape[1]), [(i, j) for i in range(design.shape[1]) for j in range(i + 1)]
    for _ in range(STEPS):
        mean = special.expit(offset + design @ beta)
        gradient = design * (positive - mean)[:, None]
        hessian = np.stack([design[:, i] * design[:, j] * mean * (1 - mean) for i, j in pairs], axis=1)
        full = np.zeros((len(beta), len(beta)))
        for (i, j), value in zip(pairs, hessian.sum(0), strict=True):
            full[i, j] = full[j, i] = value
        if not np.linalg.det(full) > 1e-12 * len(offset):
            break
        step = np.linalg.solve(full, gradient.sum(0))
        if np.abs(step).max() < 1e-10:
            return beta, np.column_stack([gradient, hessian])
        beta = beta + step * min(1.0, 2.0 / np.abs(step).max())  # a long step may overshoot
    terms = np.full((len(offset), len(beta) + len(pairs)), np.nan)
    return np.full(len(beta), np.nan), terms


def net_benefit(true: np.ndarray, false: np.ndarray, images: np.ndarray, risk: float | np.ndarray) -> np.ndarray:
    """Return the net benefit (Vickers and Elkin 2006) of calling images with at least a probability positive.

    Args:
        true: Positives with at least this probability.
        false: Negatives with at least this probability.
        images: All labelled images.
        risk: The probability, in (0, 1): at 0.1, one hit is worth nine false alarms.
    """
    return (true - false * risk / (1 - risk)) / images
