"""Differences against a margin: non-inferiority, and the patients and seeds that a study needs.

A method is *not worse by more than the margin* if a one-sided test rejects that its difference from the baseline is
minus the margin or less. The level is half of what the intervals leave out, 2.5% for 95% intervals, so that for one
method the test agrees with the lower end of the interval. Holm's method corrects it over methods. With one seed there
is no conclusion, as for every claim.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedlit.metrics.paired import holm
from fedlit.reports.compare.difference import Difference
from fedlit.reports.compare.statistics import Statistics
from fedlit.reports.compare.words import number

POWER = 0.8
MARGIN = 0.01
"""Difference that `needed` plans for if there is no margin."""

MOST_SEEDS = 1000
LATER = (3, 5, 10)
"""Numbers of seeds for which `needed` also plans."""


@dataclass(frozen=True)
class MarginTest:
    """Mean difference of a method from the baseline, against a margin."""

    method: str  # Name of the method.
    baseline: str  # Name of the baseline.
    difference: Difference  # The difference of the mean over classes.
    margin: float  # The margin, above 0.
    # One-sided p of the hypothesis that the method is worse by the margin or more; NaN for one seed.
    p_not_worse: float
    p_worse: float  # One-sided p of the hypothesis that it is not worse by more than the margin.
    p_holm: tuple[float, float] = (float("nan"), float("nan"))  # Both, corrected by Holm over methods.

    @property
    def conclusion(self) -> str:
        """Return the result: not worse by more than the margin, worse by more, worse, or inconclusive."""
        alpha = (1 - self.difference.interval.level) / 2
        not_worse, worse = (p < alpha for p in self.p_holm)
        if not_worse:
            return f"not worse by more than {self.margin:g}"
        if worse:
            return f"worse by more than {self.margin:g}"
        return "worse" if self.difference.claimed and self.difference.value < 0 else "inconclusive"

    @property
    def text(self) -> str:
        """Return the conclusion as a sentence, with the difference, its interval and p."""
        interval = self.difference.interval
        if interval.low != interval.low:
            return f"{self.method} against {self.baseline}: inconclusive, as the difference has no interval."
        ends = number(self.difference.value, "+.3f")
        ends += f" [{number(interval.low, '+.3f')}, {number(interval.high, '+.3f')}]"
        if self.p_not_worse != self.p_not_worse:
            return (
                f"{self.method} against {self.baseline}: inconclusive, as one seed says nothing about seed noise; on "
                f"these test images the difference is {ends}, and the margin {-self.margin:+g}."
            )
        p = self.p_holm[1] if self.conclusion.startswith("worse by") else self.p_holm[0]
        shown = "< 0.001" if p < 0.001 else f"= {p:.3f}"
        return (
            f"{self.method} against {self.baseline}: {self.conclusion}. The difference is {ends}, the margin "
            f"{-self.margin:+g}, one-sided p {shown} (corrected over methods; significant below "
            f"{(1 - interval.level) / 2:.3g})."
        )


def margin_tests(numbers: Statistics, margin: float) -> tuple[MarginTest, ...]:
    """Test the mean difference of every method from the baseline against a margin."""
    tests = [
        MarginTest(each.method.name, each.baseline.name, each.macro, margin, *_one_sided(each.macro, -margin))
        for each in numbers.against
    ]
    corrected = zip(holm([t.p_not_worse for t in tests]), holm([t.p_worse for t in tests]), strict=True)
    return tuple(replace(t, p_holm=(float(a), float(b))) for t, (a, b) in zip(tests, corrected, strict=True))


def _one_sided(difference: Difference, bound: float) -> tuple[float, float]:
    """Return p of the hypotheses that the difference is at most, and at least, a bound; NaN with one seed.

    They have the variance and the degrees of freedom of the difference's interval.
    """
    if difference.freedom != difference.freedom or not difference.variance > 0:
        return np.nan, np.nan
    above = difference.value - bound
    error = difference.seeds_variance**0.5
    t = above / difference.variance**0.5
    freedom = difference.freedom * (difference.variance / difference.seeds_variance) ** 2
    ps = stats.t.sf(t, freedom), stats.t.cdf(t, freedom)
    if difference.covers_images:
        images = above / difference.images_variance**0.5
        ps = (
            max(stats.t.sf(above / error, difference.freedom), stats.norm.sf(images)),
            max(stats.t.cdf(above / error, difference.freedom), stats.norm.cdf(images)),
        )
    return float(ps[0]), float(ps[1])


@dataclass(frozen=True)
class Needed:
    """Patients and seeds that find a difference of the mean over classes with 80% power."""

    method: str  # Name of the method.
    baseline: str  # Name of the baseline.
    size: float  # The difference.
    level: float  # Level of the intervals; the test is two-sided at what it leaves out.
    patients: int  # Number of test patients of these runs, or of images if patients are unknown.
    unit: str  # `patients` or `images`.
    seeds: int  # Number of seeds of each method, the smaller one.
    seeds_needed: int | None  # Seeds that are enough with these patients; None if no number is, or one seed is known.
    patients_needed: dict[int, int | None]  # Patients that are enough, by the number of seeds; None if no number is.

    @property
    def text(self) -> str:
        """Return the numbers as a sentence."""
        start = f"{self.method} against {self.baseline}: a difference of {self.size:g} is found with 80% power"
        have = f"{self.patients:,} {self.unit}"
        if self.seeds < 2:
            count = self.patients_needed[1]
            few = f"with {count:,} {self.unit}" if count else f"with no number of {self.unit}"
            return (
                f"{start} {few} against test-set noise only (these runs have {have}); one seed says nothing about the "
                "seeds that it needs."
            )
        by_seeds = f"with {self.seeds_needed} seeds each" if self.seeds_needed else "with no number of seeds"
        if not self.patients_needed:
            return (
                f"{start} on {have} of each draw {by_seeds} (these runs have {self.seeds}); each seed has its own test "
                "images, so the number of patients is that of the draws."
            )
        plans = [f"{n} seeds need {count:,} test {self.unit}" for n, count in self.patients_needed.items() if count]
        if without := [str(n) for n, count in self.patients_needed.items() if not count]:
            plans.append(f"with {', '.join(without)} seeds, no number of test {self.unit} is enough")
        return (
            f"{start} on these {have} {by_seeds} (these runs have {self.seeds}); {'; '.join(plans)}. This is rough: "
            f"seed noise is estimated from {self.seeds} seeds."
        )


def needed(numbers: Statistics, size: float) -> list[Needed]:
    """Return the patients and seeds that find a difference with 80% power, from the variances of these runs.

    For n patients and S seeds, if these runs have n0 and S0, and ``run`` is the test-set noise specific to a training,
    test-set noise has the variance ``(images + run / S - run / S0) n0 / n`` and seed noise ``(seeds S0 + run (n0 / n -
    1)) / S``. These variances are estimates: with two or three seeds, that of the seeds is known within a factor of
    several. For non-inferiority with the margin ``size``, a true difference of 0 has the same power.
    """
    patients = len(np.unique(numbers.shared.units))
    unit = "images" if numbers.shared.patients is None else "patients"
    plans = []
    for each in (each for each in numbers.against if each.macro.images_variance > 0):
        macro, seeds = each.macro, min(len(each.method.runs), len(each.baseline.runs))
        seeds = seeds if macro.freedom == macro.freedom else 1
        counts = {count: _found(macro, size, numbers.level, seeds, count) for count in range(2, MOST_SEEDS)}
        enough = next((count for count, powered in counts.items() if powered), None) if seeds > 1 else None
        by_seeds = {} if macro.covers_images else {n: None for n in sorted({seeds, *(LATER if seeds > 1 else ())})}
        for count in by_seeds:
            shares = np.geomspace(1e-2, 1e4, 4000)  # of the patients at hand
            powered = _found(macro, size, numbers.level, seeds, count, shares)
            by_seeds[count] = int(np.ceil(patients * shares[powered.argmax()])) if powered.any() else None
        plan = (each.method.name, each.baseline.name, size, numbers.level, patients, unit)
        plans.append(Needed(*plan, seeds, enough, by_seeds))
    return plans


def _found(
    difference: Difference, size: float, level: float, seeds: int, count: int, share: np.ndarray | float = 1.0
) -> np.ndarray:
    """Return whether a difference is found with the power, with another number of seeds and share of the patients."""
    if seeds < 2:
        images = difference.images_variance / share
        return size >= (stats.norm.ppf((1 + level) / 2) + stats.norm.ppf(POWER)) * np.sqrt(images)
    if difference.covers_images:
        images, noise = 0.0, difference.seeds_variance * seeds / count
    else:
        run = difference.run_variance
        images = max(difference.images_variance - run / seeds, 0.0) / share + run / share / count
        noise = (max(difference.seeds_variance * seeds - run, 0.0) + run / share) / count
    freedom = _freedom(difference, seeds, count) * ((images + noise) / noise) ** 2
    reach = stats.t.ppf((1 + level) / 2, freedom) + stats.t.ppf(POWER, freedom)
    return size >= reach * np.sqrt(images + noise)


def _freedom(difference: Difference, seeds: int, count: int) -> float:
    """Return the degrees of freedom of the variance over another number of seeds.

    Paired seeds have one less than their number. For two samples of equal variance it is about the mean of Welch's: 3,
    and not 4, for three seeds each.
    """
    paired = difference.freedom == seeds - 1
    return count - 1 if paired else 2 * (count - 1) * count / (count + 1)
