"""A run that is killed and resumed: each key and step is in MLflow once."""

import signal

import pytest
from runs import execute, wait_until
from tracked_sessions import Session, client_of, flaky, history, runs_of, two_of_three, warnings_in

from fedlit.tracking.base import MetricsFile

pytestmark = pytest.mark.usefixtures("impatient")


KILLED = """
import os, signal, sys, time
from pathlib import Path
from fedlit.tracking import MetricsFile, MLflowTracker, RunInfo, store

connect = store.connect

class Client:
    def __init__(self, uri):
        self.client = connect(uri)

    def __getattr__(self, name):
        return getattr(self.client, name)

    def log_batch(self, *args, **kwargs):
        self.client.log_batch(*args, **kwargs)
        if any(metric.step == 3 for metric in kwargs.get("metrics", ())):
            with (directory / "metrics.csv").open("a") as file:
                file.write("4,loss,0.")
            os.kill(os.getpid(), signal.SIGKILL)

store.connect = Client
directory = Path(sys.argv[1])
metrics = MetricsFile(directory / "metrics.csv")
tracker = MLflowTracker("sqlite:///mlflow.db", flush_seconds=0.01)
tracker.start(RunInfo(directory, "nih", "fedavg", {}, {}, False), metrics)
for step in range(4):
    metrics.append({"loss": step, "nan": float("nan")}, step)
    tracker.log_metrics({"loss": step, "nan": float("nan")}, step)
time.sleep(60)
"""


@pytest.mark.slow
def test_killed_before_the_acknowledgement_each_key_and_step_is_there_once(uri, tmp_path):
    """The store has rounds that the last checkpoint, after round 1, lacks."""
    directory = tmp_path / "runs" / "nih" / "fedavg"
    assert execute(KILLED, tmp_path, directory).wait() == -signal.SIGKILL
    metrics = MetricsFile(directory / "metrics.csv")
    assert metrics.path.read_text().endswith("\n4,loss,0.")
    metrics.truncate(1)
    session = Session(tmp_path, uri, resumed=True)
    for step in range(2, 6):
        session.log({"loss": step, "nan": float("nan")}, step)
    session.tracker.finish("FINISHED")
    stored = history(uri, session.run_id)
    assert stored["loss"] == [(step, step) for step in range(6)]
    assert [step for step, _ in stored["nan"]] == list(range(6))
    assert len(runs_of(uri)) == 1


def test_rows_that_never_left_are_sent_on_resume_and_a_finished_run_can_be_resumed(uri, tmp_path, monkeypatch):
    first = Session(tmp_path, uri, params={"rounds": 4, "lr": 0.1})
    for step in range(4):
        first.log({"loss": step}, step)
    first.log({"test/auroc": 0.75}, 3)
    first.tracker.finish("KILLED")
    assert client_of(uri).get_run(first.run_id).info.status == "KILLED"
    first.metrics.append({"loss": 4, "late": 1}, 4)
    first.metrics.append({"loss": 5}, 5)

    resumed = Session(tmp_path, uri, resumed=True, params={"rounds": 7, "lr": 0.1})
    resumed.log({"loss": 6}, 6)
    wait_until(lambda: client_of(uri).get_run(first.run_id).data.metrics["5-loss"] == 6)
    assert client_of(uri).get_run(first.run_id).info.status == "RUNNING"
    resumed.tracker.finish("FINISHED")
    (run,) = runs_of(uri)
    assert (run.info.run_id, run.info.status) == (first.run_id, "FINISHED")
    assert (run.data.params, run.data.tags["resumed.rounds"]) == ({"rounds": "4", "lr": "0.1"}, "7")
    expected = {"loss": [(s, s) for s in range(7)], "test/auroc": [(3, 0.75)], "late": [(4, 1)]}
    assert history(uri, first.run_id) == expected

    again = Session(tmp_path, uri, resumed=True)
    again.log({"loss": 6, "late": 1}, 6)
    again.log({"test/auroc": 0.75}, 3)
    again.tracker.finish("FINISHED")
    assert history(uri, first.run_id) == expected | {"late": [(4, 1), (6, 1)]}
    assert len(runs_of(uri)) == 1


@pytest.mark.slow
def test_a_resume_whose_store_fails_meanwhile_still_sends_each_once(uri, tmp_path, monkeypatch):
    first = Session(tmp_path, uri)
    for step in range(3):
        first.log({f"m{i}": i + step for i in range(20)}, step)
    first.tracker.finish("KILLED")
    first.metrics.append({f"m{i}": i + 3 for i in range(20)}, 3)
    flaky(monkeypatch, two_of_three("half"))
    resumed = Session(tmp_path, uri, resumed=True)
    resumed.metrics.truncate(3)
    resumed.log({f"m{i}": i + 4 for i in range(20)}, 4)
    resumed.tracker.finish("FINISHED")
    assert history(uri, first.run_id) == {f"m{i}": [(s, i + s) for s in range(5)] for i in range(20)}


def test_a_resume_with_another_store_sends_everything_to_a_new_run(uri, tmp_path):
    first = Session(tmp_path, uri)
    for step in range(3):
        first.log({"loss": step}, step)
    first.tracker.finish("KILLED")
    run_id = first.run_id
    resumed = Session(tmp_path, "sqlite:///other.db", resumed=True)
    resumed.log({"loss": 3}, 3)
    resumed.tracker.finish("FINISHED")
    assert resumed.run_id != run_id
    assert history("sqlite:///other.db", resumed.run_id) == {"loss": [(s, s) for s in range(4)]}
    assert history(uri, run_id) == {"loss": [(s, s) for s in range(3)]}


def test_a_resume_that_cannot_find_its_run_starts_a_new_one_with_everything(uri, tmp_path, caplog):
    first = Session(tmp_path, uri)
    first.log({"loss": 0}, 0)
    first.tracker.finish("KILLED")
    run_id = first.run_id
    client_of(uri).delete_run(run_id)
    resumed = Session(tmp_path, uri, resumed=True)
    resumed.log({"loss": 1}, 1)
    resumed.tracker.finish("FINISHED")
    assert resumed.run_id != run_id
    assert history(uri, resumed.run_id) == {"loss": [(0, 0), (1, 1)]}
    assert len(warnings_in(caplog)) == 1
