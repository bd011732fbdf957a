"""Calibration: against scikit-learn and scipy, and by hand."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from fedlit.metrics.calibration import Recalibration, Reliability, bin_edges, bin_of, net_benefit
from fedlit.metrics.performance import Performance, Stated

RNG = np.random.default_rng(5)


def rare(images: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are too extreme and too low, and labels."""
    score = RNG.normal(size=images) - 2
    return 1.6 * score - 0.3, RNG.random(images) < expit(score)


def refitted(score: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> float:
    """Slope of scikit-learn's logistic regression without penalty."""
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    return float(model.fit(score[:, None], positive, sample_weight=weights).coef_[0, 0])


def test_intercept_and_slope_are_those_of_logistic_regressions():
    score, positive = rare()
    found = Recalibration.of(score, positive)
    assert found.slope == pytest.approx(refitted(score, positive, np.ones(len(score))), abs=1e-5)
    assert expit(score + found.intercept).mean() == pytest.approx(positive.mean(), abs=1e-9)


def test_a_draw_is_nearly_its_own_fit():
    score, positive = rare(2000)
    found = Recalibration.of(score, positive)
    weights = RNG.poisson(1, size=(2000, 5)).astype(float)
    draws = found.draws(found.terms.T.astype(float) @ weights)
    for column, slope in enumerate(draws["slope"]):
        assert slope == pytest.approx(refitted(score, positive, weights[:, column]), abs=0.01)


@pytest.mark.parametrize("score", [np.array([-1.0, -0.5, 0.5, 1.0]), np.zeros(4)])
def test_without_a_fit_there_is_no_slope(score: np.ndarray):
    """Separated classes have an infinite slope, equal scores have none."""
    assert np.isnan(Recalibration.of(score, np.array([False, False, True, True])).slope)


def test_bins_have_equal_numbers_of_images():
    probability = expit(RNG.normal(size=1000) - 3)
    assert set(np.bincount(bin_of(probability, bin_edges(probability)))) == {100}
    assert len(bin_edges(np.full(50, 0.2))) == 1  # equal probabilities share a bin
    assert set(bin_of(np.full(50, 0.2), bin_edges(np.full(50, 0.2)))) == {0}


def test_the_interval_of_a_bin_is_wilsons():
    positive, place = np.arange(40) < 7, np.zeros(40, dtype=int)
    binned = Reliability.of(np.full(40, 0.2), positive, np.empty(0))
    low, high = binned.intervals(place, positive, np.arange(40), 0.95)[:, 0]
    ends = stats.binomtest(7, 40).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((ends.low, ends.high))
    twice = Reliability.of(np.full(80, 0.2), np.tile(positive, 2), np.empty(0))
    again = twice.intervals(np.tile(place, 2), np.tile(positive, 2), np.tile(np.arange(40), 2), 0.95)[:, 0]
    assert again == pytest.approx((low, high))  # copies of images add nothing


def test_net_benefit_and_brier_score_of_a_class():
    """Of 10 images, 2 hits and 1 false alarm at a risk of 0.2, which costs a quarter."""
    assert net_benefit(2, 1, 10, 0.2) == pytest.approx(0.175)
    score = logit(np.array([0.9, 0.5, 0.3, 0.05, 0.1]))
    positive = np.array([True, False, False, True, False])
    part = Performance(score, positive, np.arange(5), 5, Stated(risk=0.2), [0.4])
    found = {key: value[0] for key, value in part.values(np.ones((5, 1))).items()}
    assert found["net_benefit"] == pytest.approx((1 - 2 * 0.25) / 5)
    assert found["brier"] == pytest.approx(brier_score_loss(positive, expit(score)), rel=1e-6)
    assert (found["sensitivity@0"], found["specificity@0"]) == pytest.approx((1 / 2, 2 / 3))
