"""Non-inferiority against a margin."""

from functools import cache
from pathlib import Path

import numpy as np
from past_runs import compared, config, predictions, write_run
from refusals import Cli
from scipy import stats

from fedlit.reports.compare.margin import margin_tests


@cache
def numbers(ours: float, theirs: float = 1.0, seeds: int = 3, images: int = 2000):
    found = {(name, s): predictions(strength, s + 10 * (name == "FedProx"), images)
             for name, strength in (("FedAvg", theirs), ("FedProx", ours)) for s in range(seeds)}  # fmt: skip
    return compared(found, draws=100)


def test_the_conclusion_agrees_with_the_interval_of_one_method():
    of_equals, not_worse, worse = numbers(1.0), "not worse by more than 0.08", "worse by more than 0.01"
    for statistics, margin, conclusion in (
        (of_equals, 0.05, None), (of_equals, 0.0005, "inconclusive"), (numbers(0.4), 0.01, worse),
        (numbers(0.9), 0.08, not_worse), (numbers(1.3), 0.01, None),
    ):  # fmt: skip
        (test,), macro = margin_tests(statistics, margin), statistics.against[0].macro
        assert test.conclusion.startswith("not worse") == (macro.interval.low > -margin)
        assert test.conclusion.startswith("worse by more") == (macro.interval.high < -margin)
        assert f"{-margin:+g}" in test.text
        assert test.conclusion == (conclusion or test.conclusion)


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


def test_a_single_method_has_no_margin(tmp_path: Path, fedlit_cli: Cli):
    run = write_run(tmp_path / "FedAvg-0", predictions(1.0), config())
    fedlit_cli(f"compare {run} --margin 0.01 --draws 100 --output {tmp_path / 'out'}").refused("--margin")
    assert not (tmp_path / "out").exists()
