"""Fixtures of the tests of MLflow: an empty database, and a sender that does not wait."""

import pytest
from runs import free_port

from fedlit.tracking import sender, store


@pytest.fixture
def uri(tmp_path, monkeypatch):
    """The address of an empty database."""
    monkeypatch.chdir(tmp_path)
    store.connect("sqlite:///mlflow.db")
    return "sqlite:///mlflow.db"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(sender, "CLOSING_PAUSE", 0.02)


@pytest.fixture
def unused_port():
    return free_port()
