"""Loggers of Lightning: the same keys and steps as MLflow, nothing twice, and none that stops a run."""

import csv
import json
import math
import shlex
import threading
import time
from pathlib import Path

import pytest
import scripted
import yaml
from lightning.pytorch.loggers import CSVLogger, Logger
from tracked_sessions import warnings_in

from fedlit.tracking import loggers
from fedlit.tracking.base import MetricsFile, RunInfo, Tracker
from fedlit.tracking.loggers import LightningTracker, Trackers, tracker_of
from fedlit.tracking.mlflow import MLflowTracker
from fedlit.tracking.names import is_count, shown_name
from fedlit.tracking.store import connect

BASE = {
    "data": {"class_path": "toys.ToyData"},
    "model": {"class_path": "toys.ToyNet"},
    "federation": {"rounds": 2, "workers": 1, "checkpoint_every": 1},
    "logger": False,
    "name": "run",
}
RUN = Path("runs/default/run")


class Memory(Logger):
    """Keeps what it gets; everything it is asked may fail or block."""

    kept: list = []

    def __init__(self, fails: bool = False, blocks: bool = False, save_dir: str = "here") -> None:
        self.fails, self.blocks, self._folder = fails, blocks, save_dir
        type(self).kept = self.kept = []
        self.released = threading.Event()

    name, version = "memory", 0

    @property
    def save_dir(self) -> str:
        return self._folder

    def log_metrics(self, metrics, step=None) -> None:
        if self.blocks:
            self.released.wait(60)
        if self.fails:
            raise RuntimeError("no such host\nsecond line")
        self.kept += [(step, key, value) for key, value in metrics.items()]

    def log_hyperparams(self, params, *args, **kwargs) -> None:
        if self.fails:
            raise OSError("no such host")
        self.params = params

    def finalize(self, status) -> None:
        self.status = status


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loggers, "FLUSH_SECONDS", 0.01)
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(BASE))
    return tmp_path


def logged(run: Path = RUN) -> list[tuple[int, str, float]]:
    """Metrics of a run as trackers show them."""
    rows = MetricsFile(run / "metrics.csv").rows()
    return sorted((step, shown_name(key), value) for step, key, value in rows if not is_count(key))


def same(found: list, expected: list, digits: float = 1e-12) -> bool:
    """Check that both have the same keys, steps and values."""
    values = zip((row[2] for row in sorted(found)), (row[2] for row in expected), strict=True)
    named = [row[:2] for row in sorted(found)] == [row[:2] for row in expected]
    return named and all(math.isclose(a, b, rel_tol=digits) or (a != a and b != b) for a, b in values)


class Session:
    """Run the calls of a training with loggers."""

    def __init__(self, logger: Logger | list[Logger], resumed: bool = False) -> None:
        self.metrics, self.tracker = MetricsFile(RUN / "metrics.csv"), tracker_of(logger)
        self.tracker.start(RunInfo(RUN, "default", "run", {"lr": 0.1}, {}, resumed), self.metrics)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.metrics.append(metrics, step)
        self.tracker.log_metrics(metrics, step)

    def finish(self, status: str = "FINISHED") -> None:
        self.metrics.close()
        self.tracker.finish(status)


# What the key ``logger`` says.


def test_true_is_mlflow_false_is_nothing_and_a_list_is_several():
    assert type(tracker_of(True)) is MLflowTracker
    assert type(tracker_of(False)) is Tracker
    assert isinstance(tracker_of(Memory()), LightningTracker)
    assert isinstance(tracker_of([Memory()]), LightningTracker)
    both = tracker_of([MLflowTracker(), Memory()])
    assert isinstance(both, Trackers)
    assert both.keeps_models
    assert not tracker_of([MLflowTracker(log_model=False), Memory()]).keeps_models


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("CSVLogger", "CSVLogger: the following arguments are required: save_dir"),
        ("{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dirr: x}}", "did you mean save_dir?"),
        ("FedAvg", "FedAvg is an aggregator; logger takes a tracker: MLflowTracker"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_logger(given: str, words: str, fedlit_cli):
    code, _, error = fedlit_cli(f"fit --config toy.yaml --logger={shlex.quote(given)}")
    assert code == 2
    assert words in " ".join(error.split())
    assert not Path("runs").exists()


# What it gets.


def test_a_logger_gets_parameters_metrics_and_the_end():
    memory = Memory()
    session = Session(memory)
    for step in (1, 2):
        session.log({"bytes/up": 5.0, "val/auroc_macro": step / 3, "val/n_pos/Mass": 7.0, "val/loss": math.nan}, step)
    session.finish()
    assert [(step, key) for step, key, _ in memory.kept] == [
        (step, key) for step in (1, 2) for key in ("1-val/auroc_macro", "4-val/loss", "9-bytes/up")
    ]
    assert same(memory.kept, logged())
    assert memory.params == {"name": "run", "lr": 0.1}
    assert memory.status == "success"
    assert session.tracker.summary() == "Memory: here"
    Session(failed := Memory()).finish("KILLED")
    assert failed.status == "failed"


def test_tensorboard_and_csv_have_the_keys_and_steps_of_the_run_beside_mlflow(fedlit_cli, folder: Path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger",
             "init_args": {"save_dir": "tb", "default_hp_metric": False}}  # fmt: skip
    table = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "csv"}}
    (folder / "toy.yaml").write_text(yaml.safe_dump(BASE | {"logger": ["MLflowTracker", board, table]}))
    out = fedlit_cli("fit --config toy.yaml").succeeded()
    assert "TensorBoardLogger: tb/lightning_logs/version_0\nCSVLogger: csv/lightning_logs/version_0\n" in out

    board = events.EventAccumulator("tb/lightning_logs/version_0", size_guidance={"scalars": 0}).Reload()
    shown = [(e.step, key, e.value) for key in board.Tags()["scalars"] for e in board.Scalars(key)]
    assert same(shown, logged(), digits=1e-6)
    with open("csv/lightning_logs/version_0/metrics.csv") as file:
        rows = [(int(row.pop("step")), row) for row in csv.DictReader(file)]
    assert same([(step, k, float(v)) for step, row in rows for k, v in row.items() if v != ""], logged())
    hyper = yaml.safe_load(Path("csv/lightning_logs/version_0/hparams.yaml").read_text())
    assert (hyper["name"], hyper["method"]) == ("run", "FedAvg")
    (run,) = connect("sqlite:///mlflow.db").search_runs(["1"])
    assert set(run.data.metrics) == {key for _, key, _ in logged()}


# What it must not do.


def test_a_logger_that_raises_is_told_once(caplog: pytest.LogCaptureFixture):
    session = Session([Memory(fails=True), other := Memory()])
    for step in (1, 2, 3):
        session.log({"loss": 1.0}, step)
    session.finish()
    (warning,) = warnings_in(caplog)
    assert (
        warning
        == f"The logger Memory raised OSError: no such host. The run continues; its metrics are in {RUN}/metrics.csv."
    )
    assert [step for step, _, _ in other.kept] == [1, 2, 3]


def test_two_loggers_alike_get_everything_each_however_late_one_starts(monkeypatch: pytest.MonkeyPatch):
    """The progress of each logger is recorded separately, even if class and folder are the same."""
    first, second = Memory(), Memory()
    late = tracker_of([first, second])
    metrics, run = MetricsFile(RUN / "metrics.csv"), RunInfo(RUN, "default", "run", {}, {}, False)
    with monkeypatch.context() as patch:
        patch.setattr(late.trackers[1], "start", lambda *_: None)
        late.start(run, metrics)
    metrics.append({"loss": 1.0}, 1)
    while not first.kept:
        time.sleep(0.01)
    late.trackers[1].start(run, metrics)
    metrics.close()
    late.finish("FINISHED")
    assert first.kept == second.kept == [(1, shown_name("loss"), 1.0)]


def test_a_run_ends_well_with_a_logger_that_raises(caplog: pytest.LogCaptureFixture):
    fitted = scripted.fit(logger=Memory(fails=True), name="run", rounds=1)
    assert fitted.metrics["val/auroc_macro"].notna().all()
    assert len(warnings_in(caplog)) == 1
    assert json.loads((RUN / "result.json").read_text())["status"] == "FINISHED"


def test_a_logger_that_blocks_ends_with_the_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(loggers, "FINISH_SECONDS", 0.1)
    session = Session(stuck := Memory(blocks=True))
    for step in (1, 2, 3):
        session.log({"loss": 1.0}, step)
    session.finish()
    (warning,) = warnings_in(caplog)
    assert "The logger Memory did not return within 0.1 s; the run ends without it" in warning
    assert session.tracker.summary() is None
    stuck.released.set()
    session.tracker._thread.join(30)


def test_metrics_that_cannot_be_read_are_told_once(caplog: pytest.LogCaptureFixture):
    session = Session(memory := Memory())
    session.log({"loss": 1.0}, 1)
    with session.metrics.path.open("a") as file:
        file.write("my own words\n")
    session.finish()
    (warning,) = warnings_in(caplog)
    assert "receives no more metrics" in warning
    assert memory.status == "success"


# Resumed runs.


def test_a_resumed_run_logs_no_step_twice():
    session = Session(Memory())
    for step in (1, 2, 3, 4):
        session.log({"loss": float(step)}, step)
    session.finish("KILLED")
    MetricsFile(RUN / "metrics.csv").truncate(2)  # the last checkpoint was after round 2
    session = Session(again := Memory(), resumed=True)
    for step in (3, 4, 5):
        session.log({"loss": float(step)}, step)
    session.log({"test/federation/auroc_macro": 0.5}, 5)
    session.finish()
    assert sorted(again.kept) == [(5, "3-test/federation/auroc_macro", 0.5), (5, "5-loss", 5.0)]


def test_a_logger_that_joins_a_resumed_run_gets_the_earlier_rounds_too():
    for step, where in enumerate(("here", "here", "there"), 1):
        session = Session(memory := Memory(save_dir=where), resumed=step > 1)
        session.log({"loss": float(step)}, step)
        session.finish()
        assert [kept[0] for kept in memory.kept] == ([1, 2, 3] if where == "there" else [step])


def test_a_torn_note_is_no_end_of_a_run(folder: Path):
    RUN.mkdir(parents=True)
    (RUN / loggers.NOTE).write_text('{"half')
    session = Session(memory := Memory(), resumed=True)
    session.log({"loss": 1.0}, 1)
    session.finish()
    assert len(memory.kept) == 1


def test_a_csv_logger_of_a_finished_run_is_left_as_it_is(folder: Path):
    for rounds in (1, 1):
        session = Session(CSVLogger("csv"), resumed=rounds > 1)
        session.log({"loss": 1.0}, rounds)
        session.finish()
    assert (folder / "csv/lightning_logs/version_0/metrics.csv").read_text() == "5-loss,step\n1.0,1\n"
    assert not (folder / "csv/lightning_logs/version_1/metrics.csv").exists()
