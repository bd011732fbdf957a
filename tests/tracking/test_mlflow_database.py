"""A new SQLite store: MLflow makes its tables in many steps, and a run may be killed between any two, or be short."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fedlit.tracking import mlflow_store


class Stopped(BaseException):
    """As a signal would."""


def test_a_creation_that_is_cut_short_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(tracking_uri: str) -> None:
        with sqlite3.connect(tracking_uri.removeprefix("sqlite:///")) as half:
            half.execute("create table experiments (id integer)")
        raise Stopped

    with pytest.raises(Stopped):
        mlflow_store._create_database(tmp_path / "mlflow.db", cut_short)
    assert not list(tmp_path.iterdir())
    uri = f"sqlite:///{(tmp_path / 'mlflow.db').as_posix()}"
    assert mlflow_store._connect(uri).search_experiments()
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_the_faster_of_two_runs_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "mlflow.db"

    class Slow:
        def __init__(self, tracking_uri: str) -> None:
            Path(tracking_uri.removeprefix("sqlite:///")).write_text("mine")

        def search_experiments(self, max_results: int) -> None:
            file.write_text("the other's")

    mlflow_store._create_database(file, Slow)
    assert file.read_text() == "the other's"
    assert [path.name for path in file.parent.iterdir()] == ["mlflow.db"]


def test_the_sender_connects_while_a_short_run_already_writes_its_model(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time\n"
        "from fedlit.tracking.mlflow_store import _connect, import_mlflow\n"
        "sender = threading.Thread(target=lambda: _connect('sqlite:///' + sys.argv[1]).search_experiments())\n"
        "sender.start()\n"
        "time.sleep(0.5)\n"  # plain imports fail with any delay below some 1.5 s
        "import_mlflow().models.Model()\n"
        "sender.join()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "mlflow.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    assert (tmp_path / "mlflow.db").is_file()
