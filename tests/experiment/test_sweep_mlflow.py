"""Sweeps that write to one tracking store at once, one of them interrupted: everything is logged once."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import yaml
from runs import Kept, Place, preload, wait_until

from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import is_count, shown_name
from fedlit.tracking.store import connect

pytestmark = pytest.mark.slow

SEEDS = (0, 1)
RUNS = [f"{case},seed={seed}" for case in ("fedavg", "fedprox") for seed in SEEDS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new store that two sweeps of one experiment have filled at the same time."""
    preload("fedlit.tracking.imported_mlflow")
    folder = tmp_path_factory.mktemp("shared")
    store = {"tracking_uri": f"sqlite:///{folder}/mlflow.db", "artifact_location": str(folder / "artifacts")}
    logger = {"class_path": "MLflowTracker", "init_args": {**store, "flush_seconds": 0.05, "finish_seconds": 120.0}}
    lines = {}
    for case, aggregator, seconds in (("fedavg", "FedAvg", 0.0), ("fedprox", "FedProx", 0.02)):
        base = {
            "data": {"class_path": "toys.ToyData"},
            "model": {"class_path": "awkward.Slow", "init_args": {"seconds": seconds}},
            "federation": {"rounds": 8, "workers": 1, "checkpoint_every": 1},
            "logger": logger,
        }
        cases = {case: {"federation.aggregators": [aggregator]}}
        sweep = {"experiment": "both", "config": [f"{case}-base.yaml"], "cases": cases, "seeds": list(SEEDS)}
        (folder / f"{case}-base.yaml").write_text(yaml.safe_dump(base))
        (folder / f"{case}.yaml").write_text(yaml.safe_dump(sweep))
        lines[case] = f"sweep --config {folder / case}.yaml --run_dir {folder / case} --jobs 2"

    commands = {case: Place(folder / f"{case}-log").start(line) for case, line in lines.items()}
    interrupted = [Kept(folder / f"fedprox/both/fedprox,seed={seed}") for seed in SEEDS]
    assert wait_until(
        lambda: all(max(run.rounds, default=0) >= 2 for run in interrupted), commands["fedprox"], seconds=240
    )
    os.kill(commands["fedprox"].process.pid, signal.SIGINT)
    assert commands["fedprox"].wait(240) == 128 + signal.SIGINT, commands["fedprox"].output
    assert not any((run.path / "result.json").exists() for run in interrupted)
    for command in (commands["fedavg"], Place(folder / "again").start(lines["fedprox"])):
        command.succeeded(240)
    return folder


@pytest.fixture(scope="module")
def tracked(place: Path) -> dict:
    """The store's runs by name."""
    client = connect(f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("both")
    found = client.search_runs([experiment.experiment_id])
    assert Counter(run.info.run_name for run in found) == Counter([*RUNS, "fedavg", "fedprox"])
    names = {run.info.run_id: run.info.run_name for run in found}
    runs = [run for run in found if run.info.run_name in RUNS]
    for run in runs:  # those of a group are shown below one run with its name
        assert names[run.data.tags["mlflow.parentRunId"]] == run.info.run_name.partition(",")[0]
    return {run.info.run_name: run for run in found}


def directory(place: Path, name: str) -> Path:
    return place / name.partition(",")[0] / "both" / name


def test_every_run_is_there_once_and_finished(tracked: dict):
    assert {run.info.status for run in tracked.values()} == {"FINISHED"}
    assert {name: tracked[name].data.params["seed"] for name in RUNS} == {n: n[-1] for n in RUNS}


@pytest.mark.parametrize("case", ["fedavg", "fedprox"])
def test_the_run_above_has_the_mean_auroc_of_each_round(case: str, place: Path, tracked: dict):
    client, key = connect(f"sqlite:///{place}/mlflow.db"), "1-val/auroc_macro"
    parent, *seeds = (tracked[name].info.run_id for name in (case, *(run for run in RUNS if run.startswith(case))))
    steps = [
        sorted((each.step, each.value) for each in client.get_metric_history(run, key)) for run in (parent, *seeds)
    ]
    assert [step for step, _ in steps[0]] == list(range(1, 9))
    assert [value for _, value in steps[0]] == pytest.approx(
        [(one + two) / 2 for (_, one), (_, two) in zip(*steps[1:], strict=True)]
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_step_of_every_metric_is_there_once(name: str, place: Path, tracked: dict):
    client, run = connect(f"sqlite:///{place}/mlflow.db"), tracked[name]
    written: dict[str, list[int]] = {}
    for step, key, _ in MetricsFile(directory(place, name) / "metrics.csv").rows():
        if not is_count(key):
            written.setdefault(shown_name(key), []).append(step)
    assert len(written["4-train/loss"]) == 8
    history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    assert {key: sorted(metric.step for metric in metrics) for key, metrics in history.items()} == written


@pytest.mark.parametrize("name", RUNS)
def test_every_artifact_is_there(name: str, place: Path, tracked: dict):
    run, artifacts = directory(place, name), Path(tracked[name].info.artifact_uri.removeprefix("file://"))
    kept = {path.relative_to(artifacts).as_posix(): path for path in artifacts.rglob("*") if path.is_file()}
    assert "leaves_a_site.txt" in kept
    assert any(path.startswith("best/round-") and path.endswith("/manifest.json") for path in kept)
    for path in ("config.yaml", "metrics.csv", "predictions/federation.parquet", "roc_federation.png"):
        assert kept[path].read_bytes() == (run / path).read_bytes()


def test_runs_that_differ_in_their_seed_share_their_group(tracked: dict):
    groups = {name: tracked[name].data.tags["fedlit.group"] for name in RUNS}
    assert [name for name in RUNS if groups[name] == groups["fedavg,seed=0"]] == RUNS[:2]
    assert groups["fedprox,seed=0"] == groups["fedprox,seed=1"]


def test_charts_have_their_axes(tracked: dict):
    run = tracked["fedprox,seed=1"].data
    axes = {key: run.params[key] for key in ("aggregator", "window", "rounds", "seed")}
    assert axes == {"aggregator": "FedProx", "window": "1", "rounds": "8", "seed": "1"}
    assert run.tags["fedlit.method"] == "fedprox"
    assert run.metrics["9-total/steps"] == 8 * run.metrics["7-round/steps"]
    assert run.metrics["9-total/bytes_up"] == 8 * run.metrics["9-bytes/up"]
