"""Measures of a class in a group of patients, their intervals, and tests of gaps between groups."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from fedlit.metrics.claim import Difference, claim
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


def compare_groups(
    measure: Measure, group: Sample, reference: Sample, level: float, extra: float = np.inf
) -> Difference:
    """Test the gap between two groups of patients, in the same runs, by :func:`fedlit.metrics.claim.claim`.

    The standard error under test-set noise comes from draws of all patients, so patients in both groups are no problem.
    ``extra`` is :func:`fedlit.metrics.claim.extra_variance`. With one seed, ``p`` is that of the images.

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


def _tested_gap(measure: Measure, group: Sample, reference: Sample, level: float, extra: float) -> Difference:
    both = group, reference
    error = standard_error(group.draws - reference.draws, min(each.support.patients(measure.side) for each in both))
    if min(each.support.fewest for each in both) < SUPPORT or not error > 0:
        return claim(group.values, reference.values, np.nan, level, extra).untested
    parts = [(np.nanvar(each.draws), measure.freedom(each.support)) for each in both]
    with np.errstate(divide="ignore"):  # Welch and Satterthwaite; infinite for normal distributions
        freedom = sum(part for part, _ in parts) ** 2 / np.float64(sum(part**2 / degrees for part, degrees in parts))
    gap = claim(group.values, reference.values, error, level, extra, freedom)
    return replace(gap, p=gap.p_images) if len(group.values) == 1 else gap
