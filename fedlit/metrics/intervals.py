"""Confidence intervals of AUROC from a bootstrap over patients.

Images of the same patient are not independent, so formulas for independent images, such as DeLong's, would be too
narrow if patients have several.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from scipy import special, stats

from fedlit.metrics.auroc import label_codes
from fedlit.metrics.levels import DRAWS, LEVEL
from fedlit.metrics.thresholds import Counts, Ranking

MIN_PATIENTS = 10
"""Smallest number of patients with positive images, and with negative ones, for an interval and a test.

The patients of the rarer side determine the sample size: with k of them, the estimated variance is as uncertain as the
standard deviation of k numbers, so a normal test is wrong as often as a t-test with k - 1 degrees of freedom that is
read as a normal one. ``tests/metrics/test_few_patients.py`` measures a part of this, and the benchmarks' README has all
results.
"""
FEWEST, LEFT, FURTHER, NEARER = 50, 0.3, 0.22, 0.06
"""Parameters of ``logit_intervals``: smallest numbers of patients on the rarer side and of those ranked wrongly, and
sizes of its two corrections."""
CHUNK = 2**20  # elements of one work array of the bootstrap (int32: 4 MB); a few exist at a time


@dataclass(frozen=True)
class Interval:
    """A confidence interval; both ends are NaN if there is no interval.

    Raises:
        ValueError: The level is not in (0, 1).
    """

    low: float  # Lower end.
    high: float  # Upper end.
    level: float  # Confidence, in (0, 1).

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"Expected a confidence level between 0 and 1, such as 0.95, found {self.level}.")


def logit_intervals(
    auroc: np.ndarray, variance: np.ndarray, patients: np.ndarray, images: np.ndarray, level: float = LEVEL
) -> tuple[Interval, ...]:
    """Return an interval of each class, or NaN if no interval would have the coverage of the level.

    It is a Student interval on the logit scale, with one degree of freedom fewer than patients on the rarer side. Its
    end towards 0.5 is extended by ``0.22 |2 AUROC - 1|`` divided by the images on that side, because near 1 a few
    images determine the estimated variance. With 50 patients, the distance of the other end is reduced by the share
    ``0.06 |2 AUROC - 1|``, and by less with more patients. There is no interval for fewer than 50 patients on the rarer
    side, or if 0.3 patients or fewer are ranked wrongly. `tests/benchmarks/claims.py intervals` measures the coverage,
    for which the constants are chosen.

    Args:
        auroc: ``[C]`` in [0, 1], or NaN.
        variance: ``[C]`` unbiased estimates of its variance.
        patients: ``[C]`` number of independent cases on the rarer side, positives or negatives; patients, if known.
        images: ``[C]`` number of images on the same side.
        level: Confidence, in (0, 1).
    """
    wrong = patients * np.minimum(auroc, 1 - auroc)
    known = (patients >= FEWEST) & (wrong > LEFT) & (variance > 0)
    centre, error = np.where(known, auroc, 0.5), np.sqrt(np.where(known, variance, np.nan))
    reach = stats.t.ppf((1 + level) / 2, np.maximum(patients - 1, 1)) * error / (centre * (1 - centre))
    side = 2 * centre - 1  # above 0 if the upper end is the one towards 1
    nearer, further = NEARER * side * FEWEST / np.maximum(patients, 1), FURTHER * side / np.maximum(images, 1)
    low = special.expit(special.logit(centre) - reach * (1 + nearer.clip(max=0))) - further.clip(0)
    high = special.expit(special.logit(centre) + reach * (1 - nearer.clip(0))) - further.clip(max=0)
    ends = zip(np.maximum(low, 0).tolist(), np.minimum(high, 1).tolist(), strict=True)
    return tuple(Interval(*each, level) for each in ends)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Each class's AUROC, or the difference of two runs' AUROCs, with its draws over patients."""

    estimate: np.ndarray  # `[C]` float64 on the images themselves; NaN for a class without positives or negatives.
    # `[B, C]` float64 on resampled patients; NaN if a draw has no positives or no negatives of a class.
    draws: np.ndarray
    sample: str  # Digest of labels, patients, seed and number of draws, which is the same for paired runs.

    def minus(self, other: "Bootstrap") -> "Bootstrap":
        """Return the paired difference of this run and another on the same images, draw by draw.

        Raises:
            ValueError: Labels, patients, seed or number of draws differ.
        """
        if self.sample != other.sample:
            raise ValueError(
                "Expected two bootstraps with the same labels, patients, seed and number of draws, found different "
                "ones. First restrict the scores of both runs to their common images and classes, in the same order."
            )
        return Bootstrap(self.estimate - other.estimate, self.draws - other.draws, self.sample)


def bootstrap(
    scores: ArrayLike, labels: ArrayLike, patients: ArrayLike, draws: int = DRAWS, seed: int = 0
) -> Bootstrap:
    """Draw patients with replacement, each with all of their images, and return AUROC on every draw (Efron 1979).

    AUROC is exact, with averaged ties. Patients, seed and number of draws determine the resampled patients, so two runs
    on the same images are paired: ``bootstrap(a, ...).minus(bootstrap(b, ...))``. Draw b is row b of
    ``default_rng(seed).integers(P, size=(draws, P))``, positions in the sorted list of P patients.

    Args:
        scores: ``[N, C]`` floating point, of any monotone scale.
        labels: ``[N, C]`` with 1 positive, 0 negative, NaN unlabelled (left out of its class).
        patients: ``[N]`` ids of a sortable type.
        draws: Number of draws B, at least 1.
        seed: Seed of the draws.

    Raises:
        ValueError: The shapes differ, a label is not 0, 1 or NaN, a score is not finite, an image has no patient,
            there are fewer than two patients, or there are fewer than one draw.
    """
    scores, codes = _checked(scores, labels)
    patient, n_patients = patient_codes(patients, len(scores))
    if draws < 1:
        raise ValueError(f"Expected at least 1 draw, found {draws}.")
    rankings = [_ranking(*column, patient, n_patients) for column in zip(scores.T, codes.T, strict=True)]
    values = [
        np.stack([_auroc(ranking.counted(counts)) for ranking in rankings], axis=1)
        for counts in resampled(n_patients, draws, seed, max(1, CHUNK // max(len(scores), 1)))
    ]
    everyone = np.ones((n_patients, 1), dtype=np.int32)
    estimate = np.array([_auroc(ranking.counted(everyone))[0] for ranking in rankings])
    sample = f"{seed} {draws} {codes.shape}".encode() + patient.astype("<i8").tobytes() + codes.tobytes()
    return Bootstrap(estimate, np.concatenate(values), hashlib.sha256(sample).hexdigest())


def _ranking(score: np.ndarray, code: np.ndarray, patient: np.ndarray, n_patients: int) -> Ranking:
    """Rank the labelled images of a class from the lowest score up; positives are the rarer side, for fewer levels."""
    known = code >= 0
    score, positive = score[known], code[known] == 1
    # AUROC does not change if the sign of scores and the roles of positives and negatives are swapped.
    if 2 * positive.sum() > len(positive):
        score, positive = -score, ~positive
    return Ranking(-score, positive, patient[known], n_patients, np.int32)


def _auroc(counts: Counts) -> np.ndarray:
    """Return ``[B]`` AUROC of draws that are ranked from the lowest score up; NaN without positives or negatives."""
    # The number of pairs may exceed int32; float64 holds it exactly.
    doubled = np.einsum("gb,gb->b", counts.positives, counts.above + counts.at, dtype=np.float64)
    pairs = counts.positives.sum(0, dtype=np.float64) * counts.negatives
    return np.divide(doubled, 2 * pairs, out=np.full_like(pairs, np.nan), where=pairs > 0)


def resampled(n_patients: int, draws: int, seed: int, chunk: int) -> Iterator[np.ndarray]:
    """Draw patients with replacement; yield ``[P, b]`` int32, how often each is in each of up to ``chunk`` draws."""
    rng = np.random.default_rng(seed)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        drawn = rng.integers(n_patients, size=(size, n_patients)) * size + np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=n_patients * size).reshape(n_patients, size).astype(np.int32)


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return scores as float64, which represents every dtype exactly, and labels as 1, 0 or -1 (unlabelled)."""
    # Copied because torch warns about read-only arrays, which pandas returns.
    scores, labels = (torch.asarray(values, copy=True, requires_grad=False).cpu() for values in (scores, labels))
    codes = label_codes(scores, labels)
    return scores.double().numpy(), codes.numpy()


def patient_codes(patients: ArrayLike, images: int) -> tuple[np.ndarray, int]:
    """Return the patient of each image as a position in the sorted list of patients, ``[N]``, and their number.

    Raises:
        ValueError: There is not one id for each image, an id is missing, or there are fewer than two patients.
    """
    ids = np.asarray(patients)
    if ids.shape != (images,):
        raise ValueError(f"Expected one patient id for each of {images} images, found shape {list(ids.shape)}.")
    patient, names = pd.factorize(ids, sort=True)
    if (patient < 0).any():
        raise ValueError(
            f"Expected a patient id for every image, found none for {int((patient < 0).sum())} of {images}. "
            "If patients are unknown, pass the ids of images; intervals may then be too narrow."
        )
    if len(names) < 2:
        raise ValueError(f"Expected images of at least two patients, found {len(names)}.")
    return patient, len(names)
