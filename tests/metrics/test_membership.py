"""Membership by a score: the measures against plain loops, and intervals of a model that never saw the patients."""

from dataclasses import astuple

import numpy as np
import pytest

from fedlit.metrics.intervals import bootstrap
from fedlit.metrics.membership import membership


def by_loops(loss: np.ndarray, member: np.ndarray) -> dict[str, float]:
    """Every pair, and every threshold, of which an attack may choose the best."""
    ours, theirs = loss[member], loss[~member]
    found = {"auroc": ((ours[:, None] < theirs) + (ours[:, None] == theirs) / 2).mean()}
    for name, rate in (("tpr_at_1pct_fpr", 0.01), ("tpr_at_0.1pct_fpr", 0.001)):
        within = [(ours <= t).mean() for t in [-np.inf, *loss] if (theirs <= t).mean() <= rate]
        found[name] = max(within) if len(theirs) * rate >= 2 else np.nan
    found["advantage"] = (ours <= ours.mean()).mean() - (theirs <= ours.mean()).mean()
    return found


@pytest.mark.parametrize(("patients", "digits"), [(40, 1), (700, 2), (700, 6)])
def test_measures_equal_plain_loops_with_and_without_ties(patients: int, digits: int):
    rng = np.random.default_rng(patients + digits)
    loss, member = rng.exponential(size=patients).round(digits), rng.random(patients) < 0.6
    loss[member] *= 0.7
    found = {name: each.value for name, each in membership(loss, member, draws=2).items()}
    assert found == pytest.approx(by_loops(loss, member), abs=1e-12, nan_ok=True)
    assert np.isnan(found["tpr_at_1pct_fpr"]) == (patients == 40)


def test_intervals_are_those_of_the_bootstrap_over_patients():
    rng = np.random.default_rng(0)
    loss, member = rng.normal(size=300).round(1), rng.random(300) < 0.6
    drawn = bootstrap(-loss[:, None], member[:, None] * 1.0, np.arange(300), draws=500)
    low, high = np.quantile(drawn.draws[:, 0], [0.05, 0.95])
    found = membership(loss, member, level=0.9, draws=500)["auroc"]
    assert astuple(found) == pytest.approx((drawn.estimate[0], low, high), abs=1e-12)


def test_a_measure_that_no_draw_changes_has_no_interval():
    found = membership(np.arange(60.0), np.arange(60) < 30, draws=100)["auroc"]
    assert (found.value, np.isnan([found.low, found.high]).all()) == (1, True)


@pytest.mark.slow
def test_the_interval_of_a_model_that_never_saw_the_patients_contains_chance():
    """In 93 to 97% of 400 simulations, and the same for the other measures."""
    chance = {"auroc": 0.5, "advantage": 0.0, "tpr_at_1pct_fpr": 0.01}
    covered = dict.fromkeys(chance, 0)
    for seed in range(400):
        rng = np.random.default_rng(seed)
        found = membership(rng.exponential(size=850), np.arange(850) < 600, draws=300)
        for name, value in chance.items():
            covered[name] += found[name].low <= value <= found[name].high
    assert {name: 372 <= count <= 388 for name, count in covered.items()} == dict.fromkeys(chance, True), covered
