"""Fixtures of the tests of MLflow: an empty database, and a sender that does not wait."""

import os
import shutil
import socket

import pytest

from fedlit.tracking import sender
from fedlit.tracking import store as mlflow_store


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """An empty MLflow database; creating its tables takes seconds, copying it does not."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    path = tmp_path_factory.mktemp("mlflow") / "template.db"
    mlflow_store.connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(template, tmp_path / "mlflow.db")
    return "sqlite:///mlflow.db"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(sender, "CLOSING_PAUSE", 0.02)


@pytest.fixture
def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
