"""A new SQLite store: MLflow makes its tables in many steps, and a run may be killed between any two, or be short."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.tracking import store as mlflow_store
from fedlit.tracking.base import RunInfo
from fedlit.tracking.mlflow import MLflowTracker


class Stopped(BaseException):
    """As a signal would."""


@pytest.mark.slow
def test_a_creation_that_is_cut_short_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(tracking_uri: str) -> None:
        with sqlite3.connect(tracking_uri.removeprefix("sqlite:///")) as half:
            half.execute("create table experiments (id integer)")
        raise Stopped

    with pytest.raises(Stopped):
        mlflow_store.create_database(tmp_path / "mlflow.db", cut_short)
    assert not list(tmp_path.iterdir())
    uri = f"sqlite:///{(tmp_path / 'mlflow.db').as_posix()}"
    assert mlflow_store.connect(uri).search_experiments()
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_the_faster_of_two_runs_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "mlflow.db"

    class Slow:
        def __init__(self, tracking_uri: str) -> None:
            Path(tracking_uri.removeprefix("sqlite:///")).write_text("mine")

        def search_experiments(self, max_results: int) -> None:
            file.write_text("the other's")

    mlflow_store.create_database(file, Slow)
    assert file.read_text() == "the other's"
    assert [path.name for path in file.parent.iterdir()] == ["mlflow.db"]


@pytest.mark.slow
def test_the_senderconnects_while_a_short_run_already_writes_its_model(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time\n"
        "from fedlit.tracking.store import connect, import_mlflow\n"
        "sender = threading.Thread(target=lambda: connect('sqlite:///' + sys.argv[1]).search_experiments())\n"
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


@pytest.mark.parametrize("name", ["a#b", pytest.param("ä b", marks=pytest.mark.slow)])
def test_a_working_directory_of_any_name_holds_its_own_store(tmp_path: Path, monkeypatch, name: str) -> None:
    (here := tmp_path / name).mkdir()
    monkeypatch.chdir(here)
    store = mlflow_store.MLflowStore("sqlite:///mlflow.db", None, RunInfo(here, "e", "r", {}, {}, False))
    store.open()
    store.log_artifact(here / "mlflow_run.json", "")
    assert {path.name for path in here.iterdir()} == {"mlflow.db", "mlartifacts", "mlflow_run.json"}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(list(here.glob("mlartifacts/*/artifacts/mlflow_run.json"))) == 1


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a%3fb"])
def test_a_name_that_means_another_file_in_an_address_is_refused(tmp_path: Path, monkeypatch, name: str) -> None:
    (here := tmp_path / name).mkdir()
    monkeypatch.chdir(here)
    with refused(ConfigError, "rename the directory, use a store in another one"):
        MLflowTracker()
    MLflowTracker("http://127.0.0.1:9")
    MLflowTracker(f"sqlite:///{tmp_path}/mlflow.db")
    assert [*tmp_path.iterdir()] == [here]
