"""A tuning in which each final seed chooses its own settings: its plan, mistakes, choice, report and comparison."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from refusals import refused
from rich.console import Console
from sweeps import finish, write

from fedlit.core.errors import ConfigError
from fedlit.experiment.tuning import load_tuning, run_tuning
from fedlit.reports.compare.comparison import caveats
from fedlit.reports.compare.methods import OF_EACH_SEED, grouped
from fedlit.reports.compare.runs import load_runs
from fedlit.reports.tuning import write_tuning_report

pytestmark = pytest.mark.usefixtures("folder")

LR = "model.lr"
TUNE = {
    "experiment": "tuned",
    "config": ["base.yaml"],
    "cases": {
        "fedavg": {"federation.aggregators": ["FedAvg"]},
        "fedprox": {"federation.aggregators": ["FedProx"], "ranges": {"federation.aggregators.mu": [0.01, 0.1]}},
    },
    "ranges": {LR: [0.1, 0.2]},
    "tries": 2,
    "rule": {"by": "seed"},
    "seeds": [0, 1, 2],
}
SCORES = {0.1: (0.6, 0.9, 0.8), 0.2: (0.7, 0.5, 0.8)}
"""Validation AUROC of each seed by learning rate: seed 0 chooses 0.2, and the others 0.1, a tie for seed 2."""


@pytest.fixture(scope="module")
def started() -> Iterator[list[str]]:
    """Jobs that finish at once with these scores; the names of those that started."""
    names = []

    def run_jobs(jobs, at_once, started, ended, tick, *_):
        for job in jobs:
            names.append(job.name)
            started(job)
            words = dict(part.split("=") for part in job.name.split(",") if "=" in part)
            finish(job.log.parent, SCORES[float(words["lr"])][int(words["seed"])])
            ended(job, 0, False)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedlit.experiment.sweep.run_jobs", run_jobs)
        yield names


def tune(folder: Path, **changes: object):
    tuning = load_tuning(write(folder, TUNE | {"run_dir": str(folder / "runs")} | changes))
    return tuning, *run_tuning(tuning, 1, Console(quiet=True))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, started: list[str]) -> tuple:
    """The tuning, the choices of its methods, and the table of the chosen runs."""
    return tune(tmp_path_factory.mktemp("tuned"))


def test_each_seed_chooses_among_its_own_tries_and_nothing_else_runs(tuned: tuple, started: list[str]):
    tuning, (fedavg, _), finals = tuned
    assert sorted(started) == sorted({*started})
    assert len(started) == 2 * 2 * 3
    chosen = {seed: fedavg.points[each.place][LR] for each in fedavg.chosen for seed in each.seeds}
    first = fedavg.points[0][LR]
    assert chosen == {0: 0.2, 1: 0.1, 2: first}
    assert list(finals.loc[finals["case"] == "fedavg", LR]) == [0.2, 0.1, first]
    table = pd.read_csv(tuning.table)
    assert len(table) == 12
    assert {*table.loc[table["stage"] == "chosen", "name"]} == {*finals["name"]}
    assert run_tuning(tuning, 1, Console(quiet=True))[0][0].chosen == fedavg.chosen
    assert len(started) == 12


def test_report_and_table_name_the_setting_of_each_seed(folder: Path, tuned: tuple):
    text = write_tuning_report(*tuned, folder / "out")
    assert "| fedavg | 0, 2 | model.lr 0.2 | 0.7500 |" in text
    assert "| fedavg | 1 | model.lr 0.1 | 0.9000 |" in text
    assert "contain the luck of the choice" in text
    assert "about these settings" not in text
    tries = pd.read_csv(folder / "out/tries.csv")
    of_one = tries[(tries["case"] == "fedavg") & (tries["seed"] == 0)]
    assert dict(zip(of_one[LR], of_one["chosen"], strict=True)) == {0.1: False, 0.2: True}
    assert tries.groupby(["case", "seed"])["chosen"].sum().eq(1).all()


def test_a_comparison_has_one_method_with_the_runs_that_the_seeds_chose(folder: Path, tuned: tuple):
    tuning, *_ = tuned
    runs, notes = load_runs([str(tuning.directory)], None, {}, "sqlite:///none.db", folder)
    assert len(runs) == 6
    assert any("6 tries" in note for note in notes)
    methods = grouped(runs)
    assert [(method.name, method.seeds) for method in methods] == [("fedavg", (0, 1, 2)), ("fedprox", (0, 1, 2))]
    assert methods[0].settings[LR] == OF_EACH_SEED
    assert not any("these settings" in note for note in caveats(methods, methods[0]))


def test_a_comparison_of_settings_that_were_chosen_once_says_so(folder: Path, started: list[str], monkeypatch):
    monkeypatch.setitem(SCORES, 0.1, (0.6,) * 11)
    monkeypatch.setitem(SCORES, 0.2, (0.5,) * 11)
    tuning, *_ = tune(folder, rule={"seeds": [10]}, seeds=[0])
    methods = grouped(load_runs([str(tuning.directory)], None, {}, "sqlite:///none.db", folder)[0])
    notes = [note for note in caveats(methods, methods[0]) if "these settings" in note]
    assert len(notes) == 1
    assert notes[0].startswith("fedavg, fedprox: ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rule": {"by": "seed", "seeds": [100]}}, ("rule.seeds", "by: seed", "found [100]")),
        ({"rule": {"by": "seed", "seeds": [0]}}, ("rule.seeds", "found [0]")),
        ({"rule": {"by": "seed", "metric": "test/federation/auroc_macro"}}, ("rule.metric", "test/")),
        ({"rule": {"by": "seeds"}}, ("by",)),
        ({"rule": {"by": "method", "seeds": [0, 9]}}, ("seeds: ", "found 0 in both", "by: seed")),
        ({"sampler": "tpe"}, ("sampler", "by: seed", "found tpe")),
        ({"seeds": [3, 3]}, ("seeds: ", "[3, 3]")),
        ({"ranges": {}}, ("cases.fedavg", "at least one range")),
    ],
)
def test_mistakes_name_the_key(folder: Path, changes: dict, words: tuple[str, ...]):
    with refused(ConfigError, *words, "sweep.yaml"):
        load_tuning(write(folder, TUNE | changes))


def test_a_method_without_a_finished_try_of_a_seed_is_named(folder: Path, started: list[str], monkeypatch):
    nan = float("nan")
    for rate, scores in SCORES.items():
        monkeypatch.setitem(SCORES, rate, (scores[0], nan, scores[2]))
    with refused(ConfigError, "rule.metric", "fedavg with seed 1"):
        tune(folder, cases={"fedavg": {}})
