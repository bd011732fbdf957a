"""Paired tests over classes against scipy's own and against hand-derived values."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedlit.metrics.paired import paired, stars


def test_a_hand_derived_example():
    # differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 3.4641 with 2 degrees of freedom, p = 0.0742
    found = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.classes, found.difference) == (3, 2.0)
    assert found.p == pytest.approx(0.07417990022744853, abs=1e-12)
    assert found.normality == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=20))
@settings(max_examples=50, deadline=None)
def test_it_is_scipys_paired_test(pairs):
    one, other = np.array(pairs).T
    found = paired(one, other)
    if len(set((one - other).tolist())) == 1:
        assert math.isnan(found.p)
        return
    assert found.p == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-6, nan_ok=True)
    assert found.normality == pytest.approx(stats.shapiro(one - other).pvalue)
    assert paired(other, one).difference == pytest.approx(-found.difference)


def test_classes_that_one_lacks_are_left_out():
    found = paired([0.9, math.nan, 0.8, 0.7], [0.8, 0.9, math.nan, 0.5])
    assert (found.classes, found.difference) == (2, pytest.approx(0.15))
    assert math.isnan(found.normality)
    assert paired([math.nan], [0.5]).classes == 0


def test_normality_follows_the_paper():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.9, 20)
    clear = paired(base + 0.05 + 0.01 * rng.standard_normal(20), base)
    assert clear.p < 0.001
    assert clear.normal
    skewed = paired(base + np.exp(4 * rng.standard_normal(20)), base)
    assert not skewed.normal


@pytest.mark.parametrize(
    ("p", "mark"), [(0.0009, "***"), (0.001, "**"), (0.01, "*"), (0.05, "ns"), (1.0, "ns"), (math.nan, "-")]
)
def test_stars_are_of_p_below_their_bound(p, mark):
    assert stars(p) == mark


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="the same number of values"):
        paired([1.0], [1.0, 2.0])
