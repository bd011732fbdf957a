"""Statistics at thresholds: scikit-learn's with weights, and thresholds counted by hand."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from fedlit.metrics.thresholds import Ranking, choose_threshold, predictive_values, ranked

RNG = np.random.default_rng(3)


def tied(images: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, labels, and patients with one to several images."""
    positive = RNG.random(images) < 0.3
    return np.round(RNG.normal(size=images) + positive, 1), positive, RNG.integers(30, size=images)


def test_every_draw_has_the_weighted_values_of_scikit_learn():
    score, positive, patient = tied()
    draws = RNG.poisson(1, size=(30, 20)).astype(np.float64)
    found = ranked(Ranking(score, positive, patient, 30).counted(draws), 0.8, 0.7)
    for column, weights in enumerate(draws[patient].T):
        options = {"sample_weight": weights}
        assert found["auroc"][column] == pytest.approx(roc_auc_score(positive, score, **options))
        assert found["auprc"][column] == pytest.approx(average_precision_score(positive, score, **options))
        false, true, _ = roc_curve(positive, score, drop_intermediate=False, **options)
        assert found["sensitivity"][column] == pytest.approx(true[false <= 0.3 + 1e-9].max())
        assert found["specificity"][column] == pytest.approx(1 - false[true >= 0.8 - 1e-9].min())


def test_a_draw_without_positives_is_undefined():
    score, positive, patient = np.array([0.2, 0.7, 0.4]), np.array([True, False, False]), np.arange(3)
    draws = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    found = ranked(Ranking(score, positive, patient, 3).counted(draws), 0.9, 0.9)
    assert np.isnan(found["auroc"]).tolist() == [True, False]
    assert np.isnan(found["sensitivity"]).tolist() == [True, False]


@pytest.mark.parametrize("value", [0.1, 0.5, 0.9, 0.95])
def test_a_threshold_reaches_its_rate_and_no_better_one_does(value: float):
    score, positive, _ = tied()
    at = choose_threshold(score, positive, "sensitivity", value)
    assert (score[positive] >= at).mean() >= value
    assert (score[positive] >= np.nextafter(at, np.inf)).mean() < value
    at = choose_threshold(score, positive, "specificity", value)
    lower = score[score < at].max()
    assert (score[~positive] < at).mean() >= value
    assert (score[~positive] < lower).mean() < value


def test_nine_of_ten_is_a_sensitivity_of_nine_tenths():
    score = np.arange(10.0)
    assert choose_threshold(score, np.ones(10, dtype=bool), "sensitivity", 0.9) == 1
    assert np.isnan(choose_threshold(score, np.ones(10, dtype=bool), "specificity", 0.9))
    assert choose_threshold(score, np.zeros(10, dtype=bool), "specificity", 0.95) > 9


def test_predictive_values_at_another_prevalence():
    """Sensitivity 0.9 and specificity 0.8: of 1,000 with 100 ill, 90 hits and 180 false alarms."""
    ppv, npv = predictive_values(0.9, 0.8, 0.1)
    assert ppv == pytest.approx(90 / 270)
    assert npv == pytest.approx(720 / 730)
