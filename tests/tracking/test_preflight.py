"""What can be known of a store before training: words, and nothing is trained."""

import sqlite3
import time
from pathlib import Path

import pytest
from mlflow_server import Server
from refusals import refused
from runs import free_port
from tracked_sessions import client_of

from fedlit.core.errors import ConfigError
from fedlit.tracking.mlflow import MLflowTracker

RUN = (
    "fit --data awkward.NoisyData --data.clients 2 --model awkward.Slow --model.seconds 0 --federation.workers 1 "
    "--federation.rounds 1 --name run --experiment nih --logger MLflowTracker --logger.log_model false"
)


def check(uri: str | None, experiment: str = "nih", **options) -> None:
    MLflowTracker(uri, **options).check(experiment, None)


def deleted(uri: str) -> str:
    client = client_of(uri)
    client.delete_experiment(experiment := client.create_experiment("nih"))
    return experiment


def test_a_deleted_experiment_is_refused_by_the_command(uri, tmp_path, fedlit_cli):
    number = deleted(uri)
    fedlit_cli(RUN).refused("'nih' was deleted in MLflow", f"restore --experiment-id {number}", "--experiment")
    assert not (tmp_path / "runs").exists()
    check(uri, "another")
    client_of(uri).restore_experiment(number)
    check(uri)


@pytest.mark.parametrize("name", ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"])
def test_a_deleted_experiment_of_the_environment_is_refused(uri, monkeypatch, name):
    number = deleted(uri)
    monkeypatch.setenv(name, {"MLFLOW_EXPERIMENT_NAME": "nih"}.get(name, number))
    with refused(ConfigError, "was deleted in MLflow"):
        check(uri, "default")


@pytest.mark.slow
def test_a_server_that_deleted_an_experiment_is_asked_and_one_that_is_down_or_slow_is_not_waited_for(uri, tmp_path):
    deleted(uri)
    with Server(tmp_path, free_port()) as server:
        with refused(ConfigError, "'nih' was deleted in MLflow"):
            check(server.uri.replace("//", "//anna:geheim@"))
        check(server.uri, "a/b c?")
        for how in ("500", "hang", "dead"):
            server.break_down(how)
            begin = time.monotonic()
            check(server.uri)
            assert time.monotonic() - begin < 4


def unwritable(place: Path, how: str) -> str:
    file = place / "store.db"
    if how == "a folder":
        file.mkdir()
    elif how == "no database":
        file.write_text("patients\n" * 1000)
    else:
        (place / "file").write_text("")
        file = place / "file" / "folder" / "store.db"
    return f"sqlite:///{file}"


@pytest.mark.parametrize("how", ["a folder", "no database", "below a file"])
def test_a_database_that_cannot_be_written_is_refused(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    store = unwritable(tmp_path, how)
    with refused(ConfigError, "tracking_uri", store[10:], "--logger false"):
        check(store)


def test_artifacts_that_cannot_be_written_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mlartifacts").write_text("")
    with refused(ConfigError, "artifact_location", "mlartifacts"):
        check("sqlite:///new.db")
    check("sqlite:///new.db", artifact_location="s3://bucket/runs")


def test_a_new_a_locked_and_an_empty_database_are_accepted_and_not_changed(uri, tmp_path, monkeypatch):
    monkeypatch.setattr("fedlit.tracking.mlflow.CHECK_SECONDS", 0.1)
    check(f"sqlite:///{tmp_path}/a/b/new.db")
    (empty := tmp_path / "empty.db").touch()
    check(f"sqlite:///{empty}")
    assert not (tmp_path / "a").exists()
    assert empty.read_bytes() == b""
    before = (tmp_path / "mlflow.db").read_bytes()
    with sqlite3.connect("mlflow.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        check(uri)
    other.close()
    assert (tmp_path / "mlflow.db").read_bytes() == before
