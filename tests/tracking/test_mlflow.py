import json
import logging
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedlit.core.errors import ConfigError
from fedlit.tracking import sender
from fedlit.tracking import store as mlflow_store
from fedlit.tracking.base import MetricsFile, RunInfo, Tracker
from fedlit.tracking.mlflow import CHARTS, MLflowTracker
from fedlit.tracking.names import key_of

connect = mlflow_store.connect


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """An empty MLflow database; creating its tables takes seconds, copying it does not."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    path = tmp_path_factory.mktemp("mlflow") / "template.db"
    connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(template, tmp_path / "mlflow.db")
    return "sqlite:///mlflow.db"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(sender, "CLOSING_PAUSE", 0.02)


class Session:
    """What the training does: each metric goes to the file, then to the tracker."""

    def __init__(self, folder, uri, resumed=False, params=None, tags=None, finish_seconds=30.0, **options):
        self.directory = Path(folder) / "runs" / "nih" / "fedavg"
        self.metrics = MetricsFile(self.directory / "metrics.csv")
        self.tracker = MLflowTracker(uri, flush_seconds=0.02, finish_seconds=finish_seconds, **options)
        self.tracker.start(RunInfo(self.directory, "nih", "fedavg", params or {}, tags or {}, resumed), self.metrics)

    def log(self, metrics, step):
        self.metrics.append(metrics, step)
        self.tracker.log_metrics(metrics, step)

    @property
    def run_id(self):
        return json.loads((self.directory / "mlflow_run.json").read_text())["run_id"]


class Flaky:
    """An MlflowClient, some of whose calls fail.

    Args:
        client: The real one.
        fails: Called with a call's number and name; "before" and "after" make it fail before or after the
            store has carried it out, "half" after a half of the metrics was stored.
    """

    def __init__(self, client, fails=lambda number, name: None):
        self.client = client
        self.fails = fails
        self.calls = []
        self.batches = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            from mlflow.entities import Metric

            self.calls.append(name)
            how = self.fails(len(self.calls), name)
            metrics = kwargs.get("metrics", [])
            self.batches.append(len(metrics))
            if metrics:
                # A database drops what is equal to the millisecond, a file store does not: be the latter.
                metrics = [Metric(m.key, m.value, m.timestamp + len(self.calls), m.step) for m in metrics]
                kwargs["metrics"] = metrics
            if how == "before":
                raise ConnectionError("connection refused")
            if how == "half" and len(metrics) > 1:
                self.client.log_batch(args[0], metrics=metrics[: len(metrics) // 2])
                raise ConnectionError("connection reset")
            answer = getattr(self.client, name)(*args, **kwargs)
            if how in ("after", "half"):
                raise ConnectionError("connection reset by peer")
            return answer

        return call


def flaky(monkeypatch, fails=lambda number, name: None):
    clients = []

    def make(tracking_uri):
        clients.append(Flaky(connect(tracking_uri), fails))
        return clients[-1]

    monkeypatch.setattr(mlflow_store, "connect", make)
    return clients


def two_of_three(how):
    """Of three calls of one name, two fail."""
    counts = {}

    def fails(number, name):
        counts[name] = counts.get(name, 0) + 1
        return how if counts[name] % 3 else None

    return fails


def client_of(uri):
    return connect(mlflow_store.absolute(uri))


def history(uri, run_id):
    """Key to its (step, value) in the order of steps, doubles included."""
    client = client_of(uri)
    keys = client.get_run(run_id).data.metrics
    return {key_of(key): sorted((m.step, m.value) for m in client.get_metric_history(run_id, key)) for key in keys}


def runs_of(uri, experiment="nih"):
    client = client_of(uri)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


@contextmanager
def served(uri, port, monkeypatch):
    """A tracking server in front of a store."""
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", mlflow_store.absolute(uri))
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", Path("served").absolute().as_uri())
    from mlflow.server import app, handlers
    from werkzeug.serving import make_server

    for name in ("_tracking_store", "_artifact_repo"):
        monkeypatch.setattr(handlers, name, None)  # a server that another test started
    server = make_server("127.0.0.1", port, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


# A run whose store works.


def test_a_run_is_read_back_as_it_was_logged(uri, tmp_path, caplog):
    params = {f"p{i}": i for i in range(230)} | {"model.name": "densenet121", "frozen": True, "long": "x" * 9000}
    session = Session(tmp_path, uri, params=params, tags={"engine": "local"})
    before = int(time.time() * 1000)
    for step in range(3):
        session.log({"val/auroc/Mass": 0.1 * step, "val/auroc/Hernia": float("nan"), "val/n_pos/Mass": 7}, step)
    after = int(time.time() * 1000)
    config = tmp_path / "config.yaml"
    config.write_text("seed: 0\n")
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "roc.svg").write_text("<svg/>")
    session.tracker.log_artifact(config)
    session.tracker.log_artifact(tmp_path / "curves", "figures")
    session.tracker.finish("FINISHED")

    client = client_of(uri)
    run = client.get_run(session.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fedavg"
    assert client.get_experiment(run.info.experiment_id).name == "nih"
    assert {key: value for key, value in run.data.params.items() if key != "long"} == {
        key: str(value) for key, value in params.items() if key != "long"
    }
    assert run.data.params["long"].startswith("xxx")
    assert run.data.tags["engine"] == "local"
    assert history(uri, session.run_id)["val/auroc/Mass"] == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert history(uri, session.run_id).keys() == {"val/auroc/Mass", "val/auroc/Hernia"}, "counts are no charts"
    hernia = client.get_metric_history(session.run_id, "2-val/auroc/Hernia")
    assert sorted(metric.step for metric in hernia) == [0, 1, 2]
    assert all(math.isnan(metric.value) for metric in hernia)
    assert all(before <= metric.timestamp <= after for metric in hernia)
    assert {entry.path for entry in client.list_artifacts(session.run_id)} == {"config.yaml", "figures"}
    assert [e.path for e in client.list_artifacts(session.run_id, "figures/curves")] == ["figures/curves/roc.svg"]
    assert run.info.artifact_uri.startswith((tmp_path / "mlartifacts").as_uri())
    assert warnings_in(caplog) == []


def test_tags_and_the_artifact_location_are_options(uri, tmp_path):
    session = Session(tmp_path, uri, artifact_location="elsewhere", tags={"engine": "local"})
    session.tracker.finish("FAILED")
    other = MLflowTracker(uri, tags={"group": "paper", "engine": "?"})
    other.start(RunInfo(tmp_path / "b", "nih", "b", {}, {"engine": "fabric"}, False), MetricsFile(tmp_path / "b.csv"))
    other.finish("FINISHED")
    first, second = sorted(runs_of(uri), key=lambda run: run.info.start_time)
    assert first.info.artifact_uri.startswith((tmp_path / "elsewhere").as_uri())
    assert first.info.status == "FAILED"
    assert second.data.tags["group"] == "paper"
    assert second.data.tags["engine"] == "fabric", "what the run says of itself wins"


def test_no_request_holds_more_than_a_thousand_metrics(uri, tmp_path, monkeypatch):
    clients = flaky(monkeypatch)
    session = Session(tmp_path, uri)
    session.log({f"client/{i}/loss": i / 3 for i in range(2500)}, 0)
    session.tracker.finish("FINISHED")
    metrics = client_of(uri).get_run(session.run_id).data.metrics
    assert metrics == {f"5-client/{i}/loss": i / 3 for i in range(2500)}
    assert max(clients[0].batches) <= 1000
    assert clients[0].calls.count("log_batch") <= 5


def test_summary_names_the_page_and_the_command(uri, tmp_path):
    session = Session(tmp_path, uri)
    session.tracker.finish("FINISHED")
    run = runs_of(uri)[0]
    assert session.tracker.summary() == (
        "mlflow ui --backend-store-uri sqlite:///mlflow.db\n"
        f"http://127.0.0.1:5000/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/model-metrics?workflowType=machine_learning"
    )


def test_an_artifact_that_is_gone_is_named_and_the_rest_goes_on(uri, tmp_path, caplog):
    session = Session(tmp_path, uri)
    session.tracker.log_artifact(tmp_path / "best.ckpt")
    session.tracker.log_artifact(session.metrics.path)
    session.log({"auroc": 0.5}, 0)
    session.tracker.finish("FINISHED")
    (warning,) = warnings_in(caplog)
    assert "best.ckpt" in warning
    assert "no longer there" in warning
    assert history(uri, session.run_id) == {"auroc": [(0, 0.5)]}
    assert [entry.path for entry in client_of(uri).list_artifacts(session.run_id)] == ["metrics.csv"]


def test_two_trackers_that_create_one_experiment_at_once(uri, tmp_path, monkeypatch, caplog):
    both_asked = threading.Barrier(2)

    class Late(Flaky):
        def get_experiment_by_name(self, name):
            found = self.client.get_experiment_by_name(name)
            if self.calls == []:
                self.calls.append("asked")
                both_asked.wait(30)
            return found

    monkeypatch.setattr(mlflow_store, "connect", lambda uri: Late(connect(uri)))
    sessions = [Session(tmp_path / name, uri) for name in ("a", "b")]
    for session in sessions:
        session.tracker.finish("FINISHED")
    assert {run.info.run_id for run in runs_of(uri)} == {session.run_id for session in sessions}
    assert [e.name for e in client_of(uri).search_experiments()].count("nih") == 1
    assert warnings_in(caplog) == []


# A store that is down, slow, or says no.


@pytest.mark.parametrize("how", [*(pytest.param(h, marks=pytest.mark.slow) for h in ("before", "half")), "after"])
def test_whatever_fails_everything_arrives_once_and_in_order(uri, tmp_path, monkeypatch, caplog, how):
    flaky(monkeypatch, two_of_three(how))
    session = Session(tmp_path, uri, params={"lr": 0.1}, tags={"engine": "local"})
    for step in range(5):
        session.log({"loss": 1 / (1 + step), "auroc": step / 5, "nan": float("nan")}, step)
        time.sleep(0.03)
    session.tracker.log_artifact(session.metrics.path)
    session.tracker.finish("FINISHED")

    (run,) = runs_of(uri)
    assert run.info.run_id == session.run_id
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1"}
    found = history(uri, session.run_id)
    assert found["loss"] == [(step, 1 / (1 + step)) for step in range(5)]
    assert found["auroc"] == [(step, step / 5) for step in range(5)]
    assert [step for step, _ in found["nan"]] == [0, 1, 2, 3, 4]
    stored = client_of(uri).get_metric_history(session.run_id, "5-loss")
    assert sorted(stored, key=lambda m: m.step) == sorted(stored, key=lambda m: (m.timestamp, m.step))
    assert [entry.path for entry in client_of(uri).list_artifacts(session.run_id)] == ["metrics.csv"]
    (warning,) = warnings_in(caplog)
    assert "connection re" in warning
    assert "The run goes on" in warning
    assert str(session.metrics.path) in warning


def test_a_server_that_is_down_all_along_costs_the_run_nothing(tmp_path, template, caplog, unused_port):
    session = Session(tmp_path, f"http://me:secret@127.0.0.1:{unused_port}", params={"lr": 0.1}, finish_seconds=0.5)
    for step in range(10):
        session.log({"loss": step}, step)
    session.tracker.log_artifact(session.metrics.path)
    wait_until(lambda: warnings_in(caplog))
    begin = time.monotonic()
    session.tracker.finish("FINISHED")
    assert time.monotonic() - begin < 5
    session.tracker.finish("FINISHED")
    unreachable, unsent = warnings_in(caplog)
    assert "The run goes on" in unreachable
    assert "11 metrics and files of this session did not reach MLflow" in unsent
    assert "--ckpt_path last" in unsent
    assert "was not reached" in session.tracker.summary()
    assert "secret" not in unreachable + unsent + session.tracker.summary()
    assert len(list(session.metrics.rows())) == 10


@pytest.mark.slow
def test_a_server_that_never_answers_blocks_nothing(tmp_path, template, caplog):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        begin = time.monotonic()
        session = Session(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", finish_seconds=0.5)
        for step in range(1000):
            session.log({"loss": step}, step)
        assert time.monotonic() - begin < 5
        session.tracker.finish("KILLED")
        assert time.monotonic() - begin < 10
    (warning,) = warnings_in(caplog)
    assert "1000 metrics and files of this session did not reach MLflow" in warning


@pytest.mark.slow
def test_a_server_that_comes_up_later_gets_everything_once(uri, tmp_path, monkeypatch, caplog, unused_port):
    session = Session(tmp_path, f"http://127.0.0.1:{unused_port}", params={"lr": 0.1}, finish_seconds=120)
    for step in range(4):
        session.log({"loss": 1 / 3 + step, "nan": float("nan")}, step)
    wait_until(lambda: warnings_in(caplog))

    up_at = int(time.time() * 1000)
    with served(uri, unused_port, monkeypatch):
        session.log({"loss": 9.0}, 4)
        session.tracker.finish("FINISHED")
    (run,) = runs_of(uri)
    times = {m.step: m.timestamp for m in client_of(uri).get_metric_history(run.info.run_id, "5-loss")}
    assert [step for step, time_ms in times.items() if time_ms <= up_at] == [0, 1, 2, 3], "not the time of sending"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1"}
    found = history(uri, run.info.run_id)
    assert found["loss"] == [(0, 1 / 3), (1, 1 / 3 + 1), (2, 1 / 3 + 2), (3, 1 / 3 + 3), (4, 9.0)]
    assert [(step, math.isnan(value)) for step, value in found["nan"]] == [(s, True) for s in range(4)]
    assert len(warnings_in(caplog)) == 1
    assert session.tracker.summary().endswith(f"{unused_port}/#/experiments/1/runs/{run.info.run_id}/{CHARTS}")


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_and_comes_back_gets_everything_once(
    uri, tmp_path, monkeypatch, caplog, unused_port
):
    with served(uri, unused_port, monkeypatch):
        session = Session(tmp_path, f"http://127.0.0.1:{unused_port}")
        for step in range(3):
            session.log({"loss": step, "auroc": step / 10}, step)
        wait_until(lambda: session.tracker.summary() and session.tracker._sender.unsent() == 0)
    for step in range(3, 6):
        session.log({"loss": step, "auroc": step / 10}, step)
    wait_until(lambda: warnings_in(caplog))
    assert session.tracker._sender.unsent() == 6
    with served(uri, unused_port, monkeypatch):
        session.tracker.finish("FINISHED")
    (run,) = runs_of(uri)
    assert run.info.status == "FINISHED"
    expected = {"loss": [(s, s) for s in range(6)], "auroc": [(s, s / 10) for s in range(6)]}
    assert history(uri, run.info.run_id) == expected
    assert len(warnings_in(caplog)) == 1


@pytest.mark.slow
def test_a_server_that_acknowledges_late_is_not_told_twice(uri, tmp_path, monkeypatch, caplog):
    arrived, acknowledge = threading.Event(), threading.Event()

    class Late(Flaky):
        def log_batch(self, *args, **kwargs):
            self.client.log_batch(*args, **kwargs)
            if kwargs.get("metrics"):
                arrived.set()
                acknowledge.wait(60)

    clients = []
    monkeypatch.setattr(mlflow_store, "connect", lambda uri: clients.append(Late(connect(uri))) or clients[-1])
    session = Session(tmp_path, uri, finish_seconds=0.3)
    for step in range(3):
        session.log({"loss": step}, step)
    assert arrived.wait(60)
    session.log({"loss": 3}, 3)
    session.tracker.finish("FINISHED")
    (warning,) = warnings_in(caplog)
    assert " metrics and files of this session did not reach MLflow" in warning
    acknowledge.set()
    session.tracker._sender.join()

    resumed = Session(tmp_path, uri, resumed=True)
    resumed.log({"loss": 4}, 4)
    resumed.tracker.finish("FINISHED")
    assert history(uri, session.run_id) == {"loss": [(s, s) for s in range(5)]}
    assert len(runs_of(uri)) == 1


def test_runs_that_share_a_locked_database_all_arrive(uri, tmp_path, caplog):
    sessions = [Session(tmp_path / name, uri) for name in ("a", "b", "c")]
    for session in sessions:
        wait_until(lambda s=session: (s.directory / "mlflow_run.json").exists())
    with sqlite3.connect("mlflow.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        for step in range(20):
            for number, session in enumerate(sessions):
                session.log({"loss": number + step / 100}, step)
        time.sleep(0.5)
        other.execute("COMMIT")
    other.close()
    for session in sessions:
        session.tracker.finish("FINISHED")
    for number, session in enumerate(sessions):
        assert history(uri, session.run_id) == {"loss": [(step, number + step / 100) for step in range(20)]}
    assert {run.info.status for run in runs_of(uri)} == {"FINISHED"}


@pytest.mark.slow
def test_artifacts_that_have_nowhere_to_go_hold_up_nothing_else(uri, tmp_path, monkeypatch, caplog):
    flaky(monkeypatch, lambda number, name: "before" if name == "log_artifact" else None)
    session = Session(tmp_path, uri, finish_seconds=1.0)
    (tmp_path / "a.txt").write_text("a")
    for _ in range(3):
        session.tracker.log_artifact(tmp_path / "a.txt")
    session.log({"loss": 0}, 0)
    wait_until(lambda: warnings_in(caplog))
    session.log({"loss": 1}, 1)
    session.tracker.finish("FINISHED")
    assert history(uri, session.run_id) == {"loss": [(0, 0), (1, 1)]}
    assert client_of(uri).get_run(session.run_id).info.status == "FINISHED"
    unreachable, unsent = warnings_in(caplog)
    assert "connection refused" in unreachable
    assert unsent.startswith("1 metrics and files of this session did not reach MLflow at")


def test_a_file_that_is_given_again_while_it_is_sent_is_sent_again(uri, tmp_path, monkeypatch):
    file, sending = tmp_path / "best.txt", []

    def given_again(number, name):
        if name == "log_artifact":
            sending.append(file.read_text())
            if len(sending) == 1:
                file.write_text("new")
                session.tracker.log_artifact(file)

    flaky(monkeypatch, given_again)
    file.write_text("old")
    session = Session(tmp_path, uri)
    for _ in range(2):
        session.tracker.log_artifact(file)
    wait_until(lambda: session.tracker._sender.unsent() == 0)
    session.tracker.finish("FINISHED")
    assert sending == ["old", "new"]


def test_a_file_of_metrics_that_somebody_spoils_stops_the_sending_and_nothing_else(uri, tmp_path, caplog):
    session = Session(tmp_path, uri)
    session.log({"loss": 0}, 0)
    wait_until(lambda: session.tracker._sender.unsent() == 0)
    with session.metrics.path.open("a") as file:
        file.write("my own words\n")
    session.log({"loss": 1}, 1)
    session.tracker.finish("FINISHED")
    stopped, unsent = warnings_in(caplog)
    assert "Logging to MLflow stopped; the run goes on" in stopped
    assert "2 metrics and files of this session did not reach MLflow" in unsent
    assert history(uri, session.run_id) == {"loss": [(0, 0)]}


def test_what_mlflow_refuses_is_dropped_by_name_and_nothing_else(uri, tmp_path, caplog):
    session = Session(tmp_path, uri, params={"fine": 1, "bad(param)": 2}, tags={"x" * 300: "too long"})
    for step in range(2):
        session.log({f"m{i}": i for i in range(9)} | {"Nodule(Mass)": 0.5, "up//down": 1.0}, step)
    session.tracker.finish("FINISHED")
    assert history(uri, session.run_id) == {f"m{i}": [(0, i), (1, i)] for i in range(9)}
    run = client_of(uri).get_run(session.run_id)
    assert run.data.params == {"fine": "1"}
    assert run.info.status == "FINISHED"
    messages = warnings_in(caplog)
    assert len(messages) == 4
    for name in ("parameter 'bad(param)'", "metric '5-Nodule(Mass)'", "metric '5-up//down'", "tag 'xxx"):
        assert any(f"MLflow refuses the {name}" in message for message in messages), name


def test_a_run_that_somebody_deletes_does_not_disturb_the_training(uri, tmp_path, caplog):
    session = Session(tmp_path, uri)
    session.log({"loss": 1.0}, 0)
    wait_until(lambda: (session.directory / "mlflow_run.json").exists())
    client_of(uri).delete_run(session.run_id)
    for step in range(1, 50):
        session.log({"loss": 1.0}, step)
    session.tracker.finish("FINISHED")
    assert "Somebody deleted the MLflow run" in warnings_in(caplog)[0]


def test_a_deleted_experiment_is_left_alone_and_named(uri, tmp_path, caplog):
    client = client_of(uri)
    client.delete_experiment(client.create_experiment("nih"))
    session = Session(tmp_path, uri, finish_seconds=0.3)
    wait_until(lambda: warnings_in(caplog))
    session.tracker.finish("FINISHED")
    assert "the experiment 'nih' was deleted" in warnings_in(caplog)[0]
    assert client.get_experiment_by_name("nih").lifecycle_stage == "deleted"


# Kill and resume.

KILLED = """
import os, signal, sys, time
from pathlib import Path
from fedlit.tracking import MetricsFile, MLflowTracker, RunInfo

directory = Path(sys.argv[1])
metrics = MetricsFile(directory / "metrics.csv")
tracker = MLflowTracker("sqlite:///mlflow.db", flush_seconds=0.05)
tracker.start(RunInfo(directory, "nih", "fedavg", {"rounds": 8, "lr": 0.1}, {}, False), metrics)
for step in range(9):
    values = {"loss": 1 / (3 + step), "nan": float("nan")}
    metrics.append(values, step)
    tracker.log_metrics(values, step)
while not (directory / "mlflow_run.json").exists():
    time.sleep(0.05)
time.sleep(0.4)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_and_resumed_each_key_and_step_is_there_once(uri, tmp_path):
    directory = tmp_path / "runs" / "nih" / "fedavg"
    killed = subprocess.run([sys.executable, "-c", KILLED, directory], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    MetricsFile(directory / "metrics.csv").truncate(5)
    session = Session(tmp_path, uri, resumed=True, params={"rounds": 12, "lr": 0.1})
    for step in range(6, 12):
        session.log({"loss": 1 / (3 + step), "nan": float("nan")}, step)
    wait_until(lambda: client_of(uri).get_run(session.run_id).data.metrics.get("5-loss") == 1 / 14)
    assert client_of(uri).get_run(session.run_id).info.status == "RUNNING"
    session.tracker.finish("FINISHED")

    (run,) = runs_of(uri)
    assert run.info.run_id == session.run_id
    assert run.info.status == "FINISHED"
    found = history(uri, session.run_id)
    assert found["loss"] == [(step, 1 / (3 + step)) for step in range(12)]
    assert [step for step, _ in found["nan"]] == list(range(12))
    assert run.data.params["lr"] == "0.1"
    # On a machine so slow that the parameters had not been sent, the resumed run's are the first.
    assert run.data.params["rounds"] == "12" or run.data.tags["resumed.rounds"] == "12"


KILLED_BEFORE_THE_ACKNOWLEDGEMENT = """
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
@pytest.mark.parametrize("back_to", [1, 3])
def test_killed_before_the_acknowledgement_each_key_and_step_is_there_once(uri, tmp_path, back_to):
    directory = tmp_path / "runs" / "nih" / "fedavg"
    command = [sys.executable, "-c", KILLED_BEFORE_THE_ACKNOWLEDGEMENT, directory]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == -signal.SIGKILL
    metrics = MetricsFile(directory / "metrics.csv")
    assert metrics.path.read_text().endswith("\n4,loss,0.")
    metrics.truncate(back_to)
    session = Session(tmp_path, uri, resumed=True)
    for step in range(back_to + 1, 6):
        session.log({"loss": step, "nan": float("nan")}, step)
    session.tracker.finish("FINISHED")
    stored = history(uri, session.run_id)
    assert stored["loss"] == [(step, step) for step in range(6)]
    assert [step for step, _ in stored["nan"]] == list(range(6))
    assert len(runs_of(uri)) == 1


def test_rows_that_never_left_are_sent_on_resume_and_a_finished_run_can_be_resumed(uri, tmp_path, monkeypatch):
    first = Session(tmp_path, uri)
    for step in range(4):
        first.log({"loss": step}, step)
    first.log({"test/auroc": 0.75}, 3)
    first.tracker.finish("KILLED")
    assert client_of(uri).get_run(first.run_id).info.status == "KILLED"
    first.metrics.append({"loss": 4, "late": 1}, 4)
    first.metrics.append({"loss": 5}, 5)

    resumed = Session(tmp_path, uri, resumed=True)
    resumed.log({"loss": 6}, 6)
    resumed.tracker.finish("FINISHED")
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


def test_a_resume_with_another_store_sends_everything_to_a_new_run(uri, template, tmp_path):
    first = Session(tmp_path, uri)
    for step in range(3):
        first.log({"loss": step}, step)
    first.tracker.finish("KILLED")
    run_id = first.run_id
    shutil.copy(template, tmp_path / "other.db")
    resumed = Session(tmp_path, "sqlite:///other.db", resumed=True)
    resumed.log({"loss": 3}, 3)
    resumed.tracker.finish("FINISHED")
    assert resumed.run_id != run_id
    assert history("sqlite:///other.db", resumed.run_id) == {"loss": [(s, s) for s in range(4)]}
    assert history(uri, run_id) == {"loss": [(s, s) for s in range(3)]}


@pytest.mark.parametrize("loss", ["the run was deleted", "the note is torn"])
def test_a_resume_that_cannot_find_its_run_starts_a_new_one_with_everything(uri, tmp_path, caplog, loss):
    first = Session(tmp_path, uri)
    first.log({"loss": 0}, 0)
    first.tracker.finish("KILLED")
    run_id = first.run_id
    if loss == "the run was deleted":
        client_of(uri).delete_run(run_id)
    else:
        (first.directory / "mlflow_run.json").write_text('{"run_id": "')
    resumed = Session(tmp_path, uri, resumed=True)
    resumed.log({"loss": 1}, 1)
    resumed.tracker.finish("FINISHED")
    assert resumed.run_id != run_id
    assert history(uri, resumed.run_id) == {"loss": [(0, 0), (1, 1)]}
    assert len(warnings_in(caplog)) == 1


# What it costs, and what it needs.


def test_mlflow_is_imported_by_nothing_before_a_run_starts():
    code = (
        "import sys, fedlit.tracking.base, fedlit.tracking, fedlit.tracking.mlflow as m; m.MLflowTracker(); "
        "sys.exit('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_mlflow_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install mlflow.*--logger false"):
        MLflowTracker()


@pytest.mark.parametrize("wrong", [{"tracking_uri": ""}, {"flush_seconds": 0}, {"finish_seconds": -1}])
def test_a_wrong_option_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        MLflowTracker(**wrong)


@pytest.mark.slow
def test_an_interpreter_that_exits_without_finish_does_not_hang(tmp_path):
    code = (
        "import sys, threading; from pathlib import Path; from fedlit.tracking import *\n"
        "t = MLflowTracker(sys.argv[1]); d = Path('run')\n"
        "t.start(RunInfo(d, 'e', 'r', {}, {}, False), MetricsFile(d / 'metrics.csv'))\n"
        "t.log_metrics({'loss': 1.0}, 0)\n"
        "import mlflow\n"
    )
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", code, address], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert time.monotonic() - begin < 60
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr


def test_the_neutral_tracker_does_nothing(tmp_path):
    tracker = Tracker()
    tracker.start(RunInfo(tmp_path, "e", "r", {}, {}, False), MetricsFile(tmp_path / "metrics.csv"))
    tracker.log_metrics({"loss": 1.0}, 0)
    tracker.log_artifact(tmp_path)
    tracker.finish("FINISHED")
    assert tracker.summary() is None
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_never_started_does_nothing():
    tracker = MLflowTracker()
    tracker.log_metrics({"loss": 1.0}, 0)
    tracker.log_artifact(Path("x"))
    tracker.finish("FINISHED")
    assert tracker.summary() is None


@pytest.fixture
def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
