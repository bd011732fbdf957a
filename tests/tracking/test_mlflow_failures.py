"""MLflow stores that are unavailable, slow or reject data: training continues, and everything arrives once."""

import math
import socket
import sqlite3
import threading
import time

import pytest
from runs import wait_until
from tracked_sessions import Flaky, Session, client_of, flaky, history, runs_of, two_of_three, warnings_in

from fedlit.tracking import store as mlflow_store

connect = mlflow_store.connect

pytestmark = pytest.mark.usefixtures("impatient")


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
    assert "The run continues" in warning
    assert str(session.metrics.path) in warning


def test_a_server_that_is_down_all_along_costs_the_run_nothing(tmp_path, uri, caplog, unused_port):
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
    assert "The run continues" in unreachable
    assert "11 metrics and files of this session did not reach MLflow" in unsent
    assert "--ckpt_path last" in unsent
    assert "was not reached" in session.tracker.summary()
    assert "secret" not in unreachable + unsent + session.tracker.summary()
    assert len(list(session.metrics.rows())) == 10


@pytest.mark.slow
def test_a_server_that_never_answers_blocks_nothing(tmp_path, uri, caplog):
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


def test_a_store_that_comes_up_later_gets_everything_once(uri, tmp_path, caplog, monkeypatch):
    down = ["before"]
    flaky(monkeypatch, lambda number, name: down[0] if down else None)
    session = Session(tmp_path, uri, params={"lr": 0.1}, finish_seconds=120)
    for step in range(4):
        session.log({"loss": 1 / 3 + step, "nan": float("nan")}, step)
    wait_until(lambda: warnings_in(caplog))

    up_at = int(time.time() * 1000)
    time.sleep(0.002)
    down.clear()
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
        time.sleep(0.2)
        other.execute("COMMIT")
    other.close()
    for session in sessions:
        session.tracker.finish("FINISHED")
    for number, session in enumerate(sessions):
        assert history(uri, session.run_id) == {"loss": [(step, number + step / 100) for step in range(20)]}
    assert {run.info.status for run in runs_of(uri)} == {"FINISHED"}


def test_two_runs_of_a_name_that_start_at_the_same_time_stay_two(uri, tmp_path, monkeypatch):
    sessions, now = [], time.time()
    monkeypatch.setattr(mlflow_store.time, "time", lambda: now)
    for number, name in enumerate("ab"):
        sessions.append(Session(tmp_path / name, uri))
        sessions[-1].log({"loss": number}, 0)
        sessions[-1].tracker.finish("FINISHED")
    assert [history(uri, session.run_id) for session in sessions] == [{"loss": [(0, 0)]}, {"loss": [(0, 1)]}]


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
    assert "Logging to MLflow stopped" in stopped
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
        assert any(f"MLflow rejects the {name}" in message for message in messages), name


def test_a_run_that_somebody_deletes_does_not_disturb_the_training(uri, tmp_path, caplog):
    session = Session(tmp_path, uri)
    session.log({"loss": 1.0}, 0)
    wait_until(lambda: (session.directory / "mlflow_run.json").exists())
    client_of(uri).delete_run(session.run_id)
    for step in range(1, 50):
        session.log({"loss": 1.0}, step)
    session.tracker.finish("FINISHED")
    assert "was deleted. The run continues" in warnings_in(caplog)[0]


def test_a_deleted_experiment_is_left_alone_and_named(uri, tmp_path, caplog):
    client = client_of(uri)
    client.delete_experiment(client.create_experiment("nih"))
    session = Session(tmp_path, uri, finish_seconds=0.3)
    wait_until(lambda: warnings_in(caplog))
    session.tracker.finish("FINISHED")
    assert "the experiment 'nih' was deleted" in warnings_in(caplog)[0]
    assert client.get_experiment_by_name("nih").lifecycle_stage == "deleted"
