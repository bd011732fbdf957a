"""The list of runs, their ranking, and their removal."""

import shutil
from pathlib import Path

import pytest
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.experiment.past_runs import list_runs
from fedlit.tracking.lock import RunLock
from fedlit.tracking.run import Result

METRICS = """step,key,value
1,val/auroc_macro,{0}
1,train/loss,{1}
2,val/auroc_macro,0.99
"""


@pytest.fixture
def runs(folder: Path) -> Path:
    """Two finished runs whose best model is that of round 1, and one that ended before its first checkpoint."""
    for name, scores in (("a/worse", (0.6, 0.1)), ("b/better", (0.7, 0.3)), ("b/broken", None)):
        run = folder / "runs" / name
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 0\n")
        if scores:
            (run / "metrics.csv").write_text(METRICS.format(*scores))
            Result(2, 1, 1.0).write(run)
    return folder / "runs"


def names(runs) -> list[str]:
    return [run.directory.name for run in runs]


def test_runs_are_ranked_by_the_metric_of_their_best_model(runs: Path):
    assert names(list_runs([runs])) == ["worse", "better", "broken"]
    ranked = list_runs([runs], "val/auroc_macro")
    assert [(run.directory.name, run.value) for run in ranked[:2]] == [("better", 0.7), ("worse", 0.6)]
    assert names(list_runs([runs], "train/loss")) == ["worse", "better", "broken"]
    assert [run.status for run in ranked] == ["finished", "finished", "no checkpoint"]
    assert names(list_runs([runs / "b", runs / "b/better"])) == ["better", "broken"]


@pytest.fixture
def segmented(runs: Path) -> Path:
    """A finished run whose best model is that with the highest Dice."""
    run = runs / "c/segmented"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("federation: {monitor: val/dice, monitor_mode: max}\n")
    (run / "metrics.csv").write_text("step,key,value\n1,val/dice,0.8\n2,val/dice,0.7\n")
    Result(2, 1, 0.8).write(run)
    return run


def test_a_run_is_listed_with_what_selected_its_best_model(segmented: Path, fedlit_cli):
    assert [(run.metric, run.value) for run in list_runs([segmented])] == [("val/dice", 0.8)]
    listed = fedlit_cli("runs list")[1]
    assert "val/dice 0.8000" in listed
    assert "val/auroc_macro 0.7000" in listed
    assert "val/dice 0.8000" not in fedlit_cli(f"runs list {segmented.parent}")[1]  # the head has the name


@pytest.mark.parametrize("mode", ["max", "min"])
def test_runs_are_ranked_by_what_they_monitor_in_its_direction(mode: str, runs: Path, segmented: Path):
    other = runs / "c/other"
    shutil.copytree(segmented, other)
    (other / "metrics.csv").write_text("step,key,value\n1,val/dice,0.9\n")
    for run in (segmented, other):
        (run / "config.yaml").write_text(f"federation: {{monitor: val/dice, monitor_mode: {mode}}}\n")
    ranked = ["other", "segmented"] if mode == "max" else ["segmented", "other"]
    assert names(list_runs([runs], "val/dice"))[:2] == ranked
    (other / "config.yaml").write_text("federation: {monitor: val/dice, monitor_mode: max}\n")
    (segmented / "config.yaml").write_text("federation: {monitor: val/dice, monitor_mode: min}\n")
    with refused(ConfigError, "--by", "one direction", "val/dice"):
        list_runs([runs], "val/dice")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("list --by test/federation/auroc_macro", "--by"),
        ("list --by drift/update_norm", "--by"),
        ("list --by val/auroc_macr", "did you mean val/auroc_macro"),
        ("list nowhere", "nowhere"),
        ("remove runs/b", "runs/b"),
        ("remove runs/b/better", "add --yes"),
    ],
)
def test_what_cannot_be_done_is_refused(words: str, named: str, runs: Path, fedlit_cli):
    fedlit_cli(f"runs {words}").refused(named, code=2)
    assert (runs / "b/better/config.yaml").exists()


@pytest.mark.parametrize(("answer", "left"), [("n", ["worse", "better", "broken"]), ("y", ["worse", "broken"])])
def test_a_run_is_removed_once_the_user_agrees(answer: str, left: list[str], runs: Path, fedlit_cli, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert fedlit_cli("runs remove runs/b/better")[0] == (answer == "n")
    assert names(list_runs([runs])) == left


def test_a_running_run_and_those_named_with_it_are_kept(runs: Path, fedlit_cli):
    lock = RunLock(runs / "a/worse")
    lock.acquire()
    ended = fedlit_cli("runs remove --yes runs/b/better runs/a/worse")
    ended.refused("runs/a/worse", code=2)
    assert {run.directory.name: run.status for run in list_runs([runs])}["worse"] == "running"
    lock.release()
    assert fedlit_cli("runs remove --yes runs/b/better runs/a/worse")[0] == 0
    assert names(list_runs([runs])) == ["broken"]
