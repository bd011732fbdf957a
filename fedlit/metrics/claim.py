"""The rule of all claims: a difference of two methods or two groups, under test-set noise and seed noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from fedlit.metrics.intervals import Interval

ALPHA = 0.05


@dataclass(frozen=True)
class Difference:
    """A value minus another: a method's AUROC and the baseline's, or a measure in two groups of patients."""

    value: float  # Difference of the means over seeds.
    interval: Interval  # Its interval under both noises; under test-set noise only if a method has one seed.
    p_images: float  # Two-sided p of no difference, under test-set noise only.
    # Two-sided p of a t-test over seeds, or NaN if a method has one seed. It is Student's test of two samples if all
    # seeds share one draw of the data, as they are separate trainings then, and a paired test if each seed has its own.
    p_seeds: float
    p: float  # The larger of ``p_seeds`` and the p of a test with both variances; NaN if a method has one seed.
    # ``p`` after Holm's correction for all claims of the report; means and classes share its error equally.
    p_holm: float = float("nan")
    images_variance: float = float("nan")  # Its variance under test-set noise only.
    # Its variance under seed noise, with degrees of freedom; NaN for one seed. Under both noises if each seed has its
    # own draw of the data with its own test images.
    seeds_variance: float = float("nan")
    freedom: float = float("nan")
    covers_images: bool = False  # True if ``seeds_variance`` is under both noises.

    @property
    def claimed(self) -> bool:
        """Return True if the difference is beyond both noises, so that a claim may be made."""
        return self.p_holm < ALPHA

    @property
    def variance(self) -> float:
        """Return its variance under both noises, or under test-set noise only if a method has one seed."""
        if self.seeds_variance != self.seeds_variance:
            return self.images_variance
        if self.covers_images:
            return max(self.seeds_variance, self.images_variance)
        return self.seeds_variance + self.images_variance

    @property
    def stars(self) -> str:
        """Return ``***``, ``**``, ``*`` for ``p_holm`` below 0.001, 0.01, 0.05, else ``ns``; ``-`` without a test."""
        if self.p_holm != self.p_holm:
            return "-"
        return next((mark for p, mark in ((0.001, "***"), (0.01, "**"), (ALPHA, "*")) if self.p_holm < p), "ns")

    @property
    def untested(self) -> "Difference":
        """Return the difference without an interval and p."""
        return Difference(self.value, Interval(np.nan, np.nan, self.interval.level), np.nan, np.nan, np.nan)


def extra_variance(overlap: float) -> float:
    """Return the extra variance of a mean over paired seeds, relative to the variance of one seed.

    It is added to the 1/n of n independent seeds. If the test images of draws overlap, it is that of a resampled t-test
    (Nadeau and Bengio 2003): the number of test images over that of other images. It is infinite if all draws have the
    same test images, because differences between seeds do not show the noise of these images.
    """
    return overlap / (1 - overlap) if overlap < 1 else np.inf


def claim(
    ours: np.ndarray,
    theirs: np.ndarray,
    error: float,
    level: float,
    extra: float | None,
    images_freedom: float = np.inf,
) -> Difference:
    """Return the difference between two means over seeds, with its tests.

    Args:
        ours: `[S]` values of the method or group, by seed.
        theirs: `[T]` values of the baseline or reference, by seed.
        error: Standard error of the difference under test-set noise, or NaN.
        level: Level of the interval.
        extra: The `extra_variance` of paired seeds; None if seeds are not paired.
        images_freedom: Degrees of freedom of `error`.
    """
    value = float(ours.mean() - theirs.mean())

    def around(reach: float) -> Interval:
        return Interval(value - reach, value + reach, level)

    with np.errstate(divide="ignore", invalid="ignore"):
        p_images = float(2 * stats.t.sf(abs(value) / error, images_freedom)) if error else np.nan
        p_images = 1.0 if error == value == 0 else p_images
        reach_images = stats.t.ppf((1 + level) / 2, images_freedom) * error
        if min(len(ours), len(theirs)) < 2:
            alone: dict[str, Any] = {"p_images": p_images, "p_seeds": np.nan, "p": np.nan, "images_variance": error**2}
            return Difference(value, around(reach_images or np.nan), **alone)
        if extra is None:
            p_seeds, variance, freedom = _over_seeds(ours, theirs)
        else:
            p_seeds, variance, freedom = _over_draws(ours - theirs, extra if extra < np.inf else 0.0)
        noise: dict[str, Any] = {"images_variance": error**2, "seeds_variance": variance, "freedom": freedom}
        if extra is not None and extra < np.inf:  # the differences of draws show both noises
            reach = max(stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variance), reach_images)
            p = max(p_seeds, p_images)
            return Difference(value, around(reach), p_images, p_seeds, p, covers_images=True, **noise)
        total = variance + error**2
        freedom = total**2 / (variance**2 / freedom + error**4 / images_freedom)  # Welch and Satterthwaite
        reach = stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(total)
        p = max(p_seeds, float(2 * stats.t.sf(abs(value) / np.sqrt(total), freedom)))
    return Difference(value, around(reach), p_images, p_seeds, p, **noise)


def corrected(differences: Sequence[Difference], weights: Sequence[float] | None = None) -> list[Difference]:
    """Return the differences with their p corrected by Holm, for all of them, with the weights of :func:`holm`."""
    p_holm = holm([each.p for each in differences], weights).tolist()
    return [replace(each, p_holm=p) for each, p in zip(differences, p_holm, strict=True)]


def _over_draws(differences: np.ndarray, extra: float) -> tuple[float, float, float]:
    """Return p of a paired t-test, the variance of the mean difference, and its degrees of freedom; or NaN."""
    count = len(differences)
    variance = differences.var(ddof=1) * (1 / count + extra)
    if np.ptp(differences) < 1e-12:
        return np.nan, np.nan, np.nan
    p = 2 * stats.t.sf(abs(differences.mean()) / np.sqrt(variance), count - 1)
    return float(p), float(variance), float(count - 1)


def _over_seeds(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Return p of a t-test over seeds, the variance of the difference of means, and its degrees of freedom; or NaN.

    The test is Student's for two samples: with few seeds it has more power than Welch's. It can miss unequal variances;
    the test with both noises, which uses the variance returned here, guards against that.
    """
    samples = [ours, theirs]
    if max(map(np.ptp, samples)) < 1e-12:
        return np.nan, np.nan, np.nan
    sizes = np.array([len(sample) for sample in samples])
    variances = np.array([sample.var(ddof=1) for sample in samples])
    parts = variances / sizes
    pooled = (variances @ (sizes - 1)) / (sizes - 1).sum() * (1 / sizes).sum()
    p = 2 * stats.t.sf(abs(ours.mean() - theirs.mean()) / np.sqrt(pooled), (sizes - 1).sum())
    return float(p), float(parts.sum()), float(parts.sum() ** 2 / (parts**2 / (sizes - 1)).sum())


def p_text(p: float) -> str:
    """Return p as text: ``< 0.001``, ``0.034``, or ``-`` if p is NaN."""
    return "-" if p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def holm(p: Sequence[float], weights: Sequence[float] | None = None) -> np.ndarray:
    """Correct p-values for the number of tests (Holm 1979, "A simple sequentially rejective multiple test procedure").

    Args:
        p: ``[C]`` p-values, one per class; NaN means no test and is not counted.
        weights: ``[C]`` shares of the error that each test may use, above 0; by default equal ones.

    Returns:
        ``[C]`` float64 adjusted p-values; NaN if ``p`` is NaN.
    """
    adjusted, shares = np.array(p, dtype=np.float64), np.ones(len(p)) if weights is None else np.asarray(weights)
    order = np.argsort(adjusted / shares)[: np.count_nonzero(~np.isnan(adjusted))]  # NaN sorts last
    steps = adjusted[order] / shares[order] * np.cumsum(shares[order][::-1])[::-1]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
