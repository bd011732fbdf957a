"""Measures of a class in a group of patients, their intervals, and tests of gaps between groups."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from fedlit.metrics.intervals import Interval, logit_intervals

SUPPORT = 30
"""Smallest number of patients with positive images, and with negative ones, for an interval and a claim."""

UNDEFINED = 0.01
"""Largest share of draws in which a measure is undefined for an interval and a claim."""


@dataclass(frozen=True)
class Measure:
    """A measure and the scale of its interval; `tests/benchmarks/coverage.py` measures the coverage of each."""

    title: str  # Name in tables.
    # `logit` or `plain`: an interval that is symmetric on this scale; `share`: a plain one that ends at 0 and 1;
    # `score`: Wilson's interval with the effective number of images; `auroc`:
    # :func:`fedlit.metrics.intervals.logit_intervals`.
    scale: str = "plain"
    side: str = "rarer"  # Patients that determine the degrees of freedom: `positives`, `negatives`, or `rarer` of both.
    # When Student's distribution is used instead of the normal one: `always`, `never`, or if patients have several
    # images (`clustered`), because the variance then does not follow from the value.
    student: str = "clustered"

    def freedom(self, support: "PatientCounts") -> float:
        """Return the degrees of freedom of the measure's standard error; infinite for the normal distribution."""
        student = self.student == "always" or (self.student == "clustered" and support.clustered)
        return support.patients(self.side) - 1.0 if student else np.inf


MEASURES = {
    "auroc": Measure("AUROC", "auroc", student="always"),
    "auprc": Measure("AUPRC", "logit", student="always"),
    "sensitivity": Measure("sensitivity", "share", "positives"),
    "specificity": Measure("specificity", "logit", student="always"),
    "brier": Measure("Brier score", "logit"),
    "intercept": Measure("calibration intercept", student="never"),
    "slope": Measure("calibration slope"),
    "net_benefit": Measure("net benefit"),
}
"""Measures without a threshold."""

AT_THRESHOLD = {
    "sensitivity": Measure("sensitivity", "score", "positives"),
    "specificity": Measure("specificity", "score", "negatives"),
    "ppv": Measure("PPV", "logit"),
    "npv": Measure("NPV", "logit"),
}
"""Measures at a threshold that was chosen on other images."""

TESTED = ("auroc", "intercept")
"""Measures whose gaps between groups are tested, besides sensitivity and specificity at a threshold."""


@dataclass(frozen=True)
class PatientCounts:
    """Images and patients with positive and with negative labels of a class in a group."""

    n_pos: int
    n_neg: int
    patients_pos: int
    patients_neg: int

    @property
    def fewest(self) -> int:
        """Return the number of patients on the rarer side."""
        return min(self.patients_pos, self.patients_neg)

    def patients(self, side: str) -> int:
        """Return the number of patients on a side."""
        return {"positives": self.patients_pos, "negatives": self.patients_neg, "rarer": self.fewest}[side]

    @property
    def clustered(self) -> bool:
        """Return True if a patient has several images on a side."""
        return self.n_pos > self.patients_pos or self.n_neg > self.patients_neg


def standard_error(draws: np.ndarray, patients: int) -> float:
    """Return the standard deviation of draws, corrected for few patients; NaN if too many draws are undefined."""
    defined = np.isfinite(draws)
    if defined.mean() < 1 - UNDEFINED or patients < 2:
        return float("nan")
    return float(draws[defined].std(ddof=1) * np.sqrt(patients / (patients - 1)))


def interval(measure: Measure, value: float, error: float, support: PatientCounts, level: float) -> Interval:
    """Return an interval, or NaN if none has the coverage of its level: with few patients, or without any variation."""
    nothing, patients = Interval(np.nan, np.nan, level), support.patients(measure.side)
    if support.fewest < SUPPORT or not error > 0:
        return nothing
    if measure.scale == "auroc":
        images = support.n_pos if support.patients_pos <= support.patients_neg else support.n_neg
        auroc, variance, rarer, of_them = (np.array([each]) for each in (value, error**2, patients, images))
        return logit_intervals(auroc, variance, rarer, of_them, level)[0]
    reach = stats.t.ppf((1 + level) / 2, measure.freedom(support))
    if measure.scale == "plain":
        return Interval(value - reach * error, value + reach * error, level)
    if measure.scale == "share":
        return Interval(max(value - reach * error, 0.0), min(value + reach * error, 1.0), level)
    if not 0 < value < 1:
        return nothing
    spread = value * (1 - value)
    if measure.scale == "logit":
        low, high = special.expit(special.logit(value) + np.array([-1, 1]) * reach * error / spread).tolist()
        return Interval(low, high, level)
    weight = (reach * error) ** 2 / spread  # reach squared over the effective number of images
    middle, half = value + weight / 2, np.sqrt(weight * spread + weight**2 / 4)
    return Interval((middle - half) / (1 + weight), (middle + half) / (1 + weight), level)


@dataclass(frozen=True)
class Gap:
    """A measure in one group minus that in another."""

    value: float  # Difference of the means over seeds.
    interval: Interval  # Its interval under all noise that `p` covers.
    p_images: float  # Two-sided p of no gap, under test-set noise only.
    p_seeds: float  # Two-sided p of a paired t-test over seeds; NaN for one seed.
    p: float  # p for both noises; that of the images for one seed.


@dataclass(frozen=True, eq=False)
class Sample:
    """A measure in one group of patients."""

    values: np.ndarray  # `[S]` values by seed.
    draws: np.ndarray  # `[B]` draws of the mean over seeds.
    support: PatientCounts  # Images and patients.

    def on_logit_scale(self) -> "Sample":
        """Return the sample on the logit scale, linearised at its mean; NaN if the mean is 0 or 1."""
        centre = self.values.mean()
        slope, origin = (1 / (centre * (1 - centre)), special.logit(centre)) if 0 < centre < 1 else (np.nan, np.nan)
        values, draws = (origin + slope * (each - centre) for each in (self.values, self.draws))
        return Sample(values, draws, self.support)


def compare_groups(measure: Measure, group: Sample, reference: Sample, level: float, extra: float = np.inf) -> Gap:
    """Test the gap between two groups of patients, in the same runs.

    The standard error under test-set noise comes from draws of all patients, so patients in both groups are no problem.
    With several seeds, the variance is the sum of that of the images and of that over seeds. If each seed has its own
    test images, gaps of seeds show both noises: the larger p and the longer interval are used. The ``extra`` variance
    is that of test images in common (Nadeau and Bengio 2003), relative to that of one seed; it is infinite if all seeds
    have the same images.

    Rates and AUROC are tested on the logit scale. On their own, a small group that happens to be near 1 seems to vary
    too little, so p of 0.001 is too small by three to seven times; most reports have so many tests that it counts.
    """
    gap = _tested_gap(measure, group, reference, level, extra)
    if measure.scale == "plain":
        return gap
    tests = _tested_gap(measure, group.on_logit_scale(), reference.on_logit_scale(), level, extra)
    if len(group.values) == 1:
        return replace(gap, p_images=tests.p_images, p=tests.p)
    # The test over seeds needs no variance of images, and keeps the scale of the gap.
    others = tests.p_images if extra < np.inf else tests.p
    return replace(gap, p_images=tests.p_images, p=max(gap.p_seeds, others) if others == others else np.nan)


def _tested_gap(measure: Measure, group: Sample, reference: Sample, level: float, extra: float) -> Gap:
    changes, both = group.values - reference.values, (group, reference)
    value, fewest = float(changes.mean()), min(each.support.patients(measure.side) for each in both)
    error = standard_error(group.draws - reference.draws, fewest)
    if min(each.support.fewest for each in both) < SUPPORT or not error > 0 or not np.isfinite(value):
        return Gap(value, Interval(np.nan, np.nan, level), np.nan, np.nan, np.nan)
    # Welch and Satterthwaite, here and below.
    parts = [(np.nanvar(each.draws), measure.freedom(each.support)) for each in both]
    inverse = sum(part**2 / freedom for part, freedom in parts) / sum(part for part, _ in parts) ** 2
    p = p_images = _two_sided(value / error, inverse)
    p_seeds, seeds = float("nan"), len(changes)
    reach = _quantile(level, inverse) * error
    if seeds > 1:
        own = extra < np.inf
        variance = changes.var(ddof=1) * (1 / seeds + (extra if own else 0))
        p_seeds = _two_sided(value / max(variance, 1e-24) ** 0.5, 1 / (seeds - 1))
        if own:
            reach = max(reach, _quantile(level, 1 / (seeds - 1)) * variance**0.5)
            return Gap(value, Interval(value - reach, value + reach, level), p_images, p_seeds, max(p_seeds, p_images))
        total = variance + error**2
        inverse = (variance**2 / (seeds - 1) + error**4 * inverse) / total**2
        p = max(p_seeds, _two_sided(value / total**0.5, inverse))
        reach = _quantile(level, inverse) * total**0.5
    return Gap(value, Interval(value - reach, value + reach, level), p_images, p_seeds, p)


def _quantile(level: float, inverse: float) -> float:
    """Return the quantile of Student's t for an interval, given the inverse of its degrees of freedom."""
    return float(stats.t.ppf((1 + level) / 2, 1 / inverse if inverse else np.inf))


def _two_sided(statistic: float, inverse: float) -> float:
    """Return the two-sided p of Student's t, given the inverse of its degrees of freedom."""
    return float(2 * stats.t.sf(abs(statistic), 1 / inverse if inverse else np.inf))
