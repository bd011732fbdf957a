"""Intervals of measures, and tests of gaps between groups."""

import numpy as np
import pytest
from scipy import stats

from fedlit.metrics.claim import Difference
from fedlit.metrics.measures import (
    AT_THRESHOLD,
    MEASURES,
    Measure,
    PatientCounts,
    Sample,
    compare_groups,
    interval,
    standard_error,
)

MANY = PatientCounts(60, 600, 60, 600)
SEVERAL = PatientCounts(120, 600, 60, 300)


def test_the_interval_of_a_rate_is_wilsons_if_each_patient_has_one_image():
    error = (0.8 * 0.2 / 60) ** 0.5
    found = interval(AT_THRESHOLD["sensitivity"], 0.8, error, MANY, 0.95)
    ends = stats.binomtest(48, 60).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))


def test_several_images_of_a_patient_give_a_wider_interval():
    ours, theirs = (interval(Measure("any"), 0.0, 1.0, each, 0.95) for each in (SEVERAL, MANY))
    assert ours.high == pytest.approx(stats.t.ppf(0.975, 59))
    assert theirs.high == pytest.approx(stats.norm.ppf(0.975))


@pytest.mark.parametrize("support", [PatientCounts(29, 600, 29, 600), PatientCounts(600, 200, 600, 29)])
@pytest.mark.parametrize("name", MEASURES)
def test_few_patients_have_no_interval_and_no_test(name: str, support: PatientCounts) -> None:
    assert np.isnan(interval(MEASURES[name], 0.8, 0.05, support, 0.95).low)
    draws = np.random.default_rng(0).normal(size=200)
    ours, theirs = Sample(np.array([0.5]), draws, MANY), Sample(np.array([0.1]), draws[::-1], support)
    gap = compare_groups(MEASURES[name], ours, theirs, 0.95)
    assert np.isnan([gap.p, gap.interval.low]).all()


def test_the_interval_of_a_sensitivity_ends_at_0_and_1():
    for value in (0.02, 0.98):
        found = interval(MEASURES["sensitivity"], value, 0.05, MANY, 0.95)
        assert 0 <= found.low < value < found.high <= 1


def test_without_variation_there_is_no_interval():
    assert np.isnan(interval(AT_THRESHOLD["sensitivity"], 1.0, 0.0, MANY, 0.95).low)
    assert np.isnan(interval(MEASURES["slope"], 1.0, float("nan"), MANY, 0.95).low)
    assert np.isnan(standard_error(np.append(np.arange(50.0), np.nan), 40))


def gap(ours: list[float], theirs: list[float], support: PatientCounts) -> tuple[Difference, float]:
    """A gap with the same draws in each test."""
    rng = np.random.default_rng(1)
    samples = [Sample(np.array(values), rng.normal(0, 0.02, size=2000), support) for values in (ours, theirs)]
    return compare_groups(Measure("any"), *samples, 0.95), standard_error(samples[0].draws - samples[1].draws, 60)


def test_one_seed_is_tested_on_images_and_several_on_both():
    one, error = gap([0.85], [0.80], MANY)
    assert one.p == one.p_images == pytest.approx(2 * stats.norm.sf(0.05 / error))
    ours, theirs = [0.84, 0.86, 0.85], [0.80, 0.81, 0.79]
    several, _ = gap(ours, theirs, MANY)
    assert several.p_images == pytest.approx(one.p_images)
    assert several.p_seeds == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert several.p > several.p_images
    assert several.interval.high - several.interval.low > one.interval.high - one.interval.low


def test_groups_with_several_images_per_patient_have_the_freedom_of_both():
    """Two groups of equal size and variance: twice the degrees of freedom of one."""
    found, error = gap([0.85], [0.80], SEVERAL)
    assert found.p == pytest.approx(2 * stats.t.sf(0.05 / error, 2 * 59), rel=0.05)


def test_small_p_of_a_small_group_against_a_large_one_is_as_rare_as_it_says():
    """Groups of 30 and 100 positives with the same sensitivity of 0.9: p below 0.001 in 0.1%, where plain p has 1%.

    Every pair of counts is weighted by its probability. The draws of the two groups are uncorrelated, of unit variance.
    """
    low, tested = 0.0, 0.0
    both = np.stack([np.tile([1, -1], 26), np.repeat([1, -1], 26)]) * (51 / 52) ** 0.5
    for ours in range(18, 31):
        for theirs in range(74, 101):
            samples = []
            for hits, size, draws in zip((ours, theirs), (30, 100), both, strict=True):
                error = (hits / size * (1 - hits / size) / size) ** 0.5
                counts = PatientCounts(size, 300, size, 300)
                samples.append(Sample(np.array([hits / size]), hits / size + error * draws, counts))
            found = compare_groups(AT_THRESHOLD["sensitivity"], *samples, 0.95)
            share = stats.binom.pmf(ours, 30, 0.9) * stats.binom.pmf(theirs, 100, 0.9)
            tested, low = tested + share * (found.p == found.p), low + share * (found.p < 0.001)
    assert tested > 0.8
    assert low <= 0.001


def test_a_rate_of_1_has_an_interval_of_its_gap_but_no_test():
    rng = np.random.default_rng(0)
    ours, theirs = (Sample(np.array([v]), v + rng.normal(0, 0.02, 200), MANY) for v in (1.0, 0.8))
    found = compare_groups(AT_THRESHOLD["sensitivity"], ours, theirs, 0.95)
    assert found.interval.low == found.interval.low
    assert np.isnan(found.p)
