"""Non-inferiority against a margin, and the patients and seeds that a difference needs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from past_runs import compared, config, predictions, write_run
from refusals import Cli
from scipy import stats

from fedlit.reports.compare.margin import POWER, margin_tests, needed

WELCH = {3: np.pi, 5: 6 * (np.pi - 2), 10: 16.5367}
"""Mean of Welch's degrees of freedom by the number of seeds of both methods, whose variances are equal."""


def numbers(ours: float, theirs: float = 1.0, seeds: int = 3, images: int = 2000):
    found = {(name, s): predictions(strength, s + 10 * (name == "FedProx"), images)
             for name, strength in (("FedAvg", theirs), ("FedProx", ours)) for s in range(seeds)}  # fmt: skip
    return compared(found, draws=200)


def test_the_conclusion_agrees_with_the_interval_of_one_method():
    for ours, margin in ((1.0, 0.05), (1.0, 0.0005), (0.4, 0.01), (0.9, 0.08), (1.3, 0.01)):
        statistics = numbers(ours)
        (test,), macro = margin_tests(statistics, margin), statistics.against[0].macro
        assert test.conclusion.startswith("not worse") == (macro.interval.low > -margin)
        assert test.conclusion.startswith("worse by more") == (macro.interval.high < -margin)
        assert f"{-margin:+g}" in test.text
    (test,) = margin_tests(numbers(0.9), 0.08)
    assert test.conclusion == "not worse by more than 0.08"
    assert margin_tests(numbers(0.4), 0.01)[0].conclusion == "worse by more than 0.01"
    assert margin_tests(numbers(1.0), 0.0005)[0].conclusion == "inconclusive"


def test_the_one_sided_p_is_that_of_the_variance_with_both_noises():
    statistics = numbers(0.9)
    (test,), macro = margin_tests(statistics, 0.05), statistics.against[0].macro
    half = macro.interval.high - macro.value
    freedom = macro.freedom * (macro.variance / macro.seeds_variance) ** 2
    np.testing.assert_allclose(half, stats.t.ppf(0.975, freedom) * macro.variance**0.5)
    np.testing.assert_allclose(test.p_not_worse, stats.t.sf((macro.value + 0.05) / macro.variance**0.5, freedom))
    np.testing.assert_allclose(test.p_worse, 1 - test.p_not_worse)


def test_several_methods_are_corrected():
    found = {(name, s): predictions(1.0, s + place * 10, 2000)
             for place, name in enumerate(("FedAvg", "FedProx", "Scaffold")) for s in range(3)}  # fmt: skip
    tests = margin_tests(compared(found, draws=100), 0.05)
    assert all(test.p_holm[0] >= test.p_not_worse for test in tests)
    smallest = 2 * min(test.p_not_worse for test in tests)
    np.testing.assert_allclose(min(test.p_holm[0] for test in tests), smallest, rtol=1e-9)


def test_one_seed_gives_no_conclusion():
    (test,) = margin_tests(numbers(1.0, seeds=1), 0.2)
    assert test.conclusion == "inconclusive"
    assert "one seed says nothing about seed noise" in test.text
    (plan,) = needed(numbers(1.0, seeds=1), 0.01)
    assert plan.seeds_needed is None
    assert "test-set noise only" in plan.text


def test_the_needed_patients_give_the_power():
    statistics = numbers(1.0, seeds=3, images=300)
    macro, (plan,) = statistics.against[0].macro, needed(statistics, 0.03)
    training = max(macro.seeds_variance * 3 - macro.run_variance, 0)
    common = max(macro.images_variance - macro.run_variance / 3, 0)
    assert all(f"{seeds} seeds need {count:,} test" in plan.text for seeds, count in plan.patients_needed.items())
    impossible = replace(plan, patients_needed={3: None, 5: None, 10: 700})
    assert "10 seeds need 700 test patients; with 3, 5 seeds, no number of test patients is enough." in impossible.text
    for seeds, patients in plan.patients_needed.items():
        run = macro.run_variance * 300 / patients
        noise = (training + run) / seeds
        total = common * 300 / patients + run / seeds + noise
        freedom = WELCH[seeds] * (total / noise) ** 2
        power = stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, 0.03 / total**0.5)
        assert POWER - 0.02 < power < POWER + 0.05
    assert list(plan.patients_needed.values()) == sorted(plan.patients_needed.values(), reverse=True)
    few = [needed(statistics, size)[0].patients_needed[10] for size in (0.02, 0.04)]
    assert few[0] > 3 * few[1]


def test_the_test_set_noise_of_a_training_grows_with_fewer_patients():
    few, many = (numbers(1.0, seeds=4, images=images).against[0].macro for images in (300, 1200))
    assert 2.5 < few.run_variance / many.run_variance < 6
    assert many.run_variance / 4 == pytest.approx(many.images_variance, rel=0.4)  # scores of seeds share no noise


def test_the_test_set_noise_that_methods_share_on_a_draw_of_the_data_cancels():
    found = {(name, s): predictions(1.0, s, 300) for name in ("FedAvg", "FedProx") for s in range(4)}
    for seed in range(4):  # a different training, with nearly the scores of the baseline's on this draw
        other = found["FedProx", seed]
        noise = 0.05 * torch.randn(other.scores.shape, generator=torch.Generator().manual_seed(seed))
        found["FedProx", seed] = replace(other, scores=other.scores + noise)
    separate, paired = (compared(found, drawn, draws=200).against[0].macro for drawn in (False, True))
    assert not paired.covers_images
    assert paired.run_variance < separate.run_variance / 10


def test_the_test_set_noise_of_a_training_is_no_larger_than_that_of_few_trainings():
    found = {("FedAvg", s): predictions(1.0, s, 300) for s in range(9)}
    found |= {("FedProx", s): predictions(1.0, s + 20, 300) for s in range(3)}
    macro = compared(found, draws=200).against[0].macro
    assert macro.run_variance / 3 == pytest.approx(macro.images_variance, rel=0.3)


@pytest.mark.parametrize("options", ["--margin 0.01", "--power"])
def test_a_single_method_has_no_margin(options: str, tmp_path: Path, fedlit_cli: Cli):
    run = write_run(tmp_path / "FedAvg-0", predictions(1.0), config())
    fedlit_cli(f"compare {run} {options} --draws 100 --output {tmp_path / 'out'}").refused("--margin")
    assert not (tmp_path / "out").exists()
