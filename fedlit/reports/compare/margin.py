"""Differences against a margin: non-inferiority.

A method is *not worse by more than the margin* if a one-sided test rejects that its difference from the baseline is
minus the margin or less. The level is half of what the intervals leave out, 2.5% for 95% intervals, so that for one
method the test agrees with the lower end of the interval. Holm's method corrects it over methods. With one seed there
is no conclusion, as for every claim.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedlit.metrics.claim import Difference, holm
from fedlit.reports.compare.statistics import Statistics
from fedlit.reports.table import number


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
