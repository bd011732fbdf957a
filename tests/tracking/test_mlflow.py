"""A run in MLflow whose store works, and what it costs."""

import json
import math
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from refusals import refused
from runs import execute
from tracked_sessions import Flaky, Session, client_of, flaky, history, runs_of, warnings_in

from fedlit.core.errors import ConfigError
from fedlit.tracking import store as mlflow_store
from fedlit.tracking.base import DataInfo, MetricsFile, RunInfo
from fedlit.tracking.mlflow import MLflowTracker

connect = mlflow_store.connect

pytestmark = pytest.mark.usefixtures("impatient")


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


def test_the_data_of_a_run_are_a_dataset(uri, tmp_path, caplog):
    counts = {"clients": 2, "classes": 3, "training_images": 30, "training_images/a": 10, "training_images/b": 20}
    data = DataInfo("PhantomCXR", "fedlit.data.phantom.phantom.PhantomCXR", "0123456789ab", counts)
    for _ in range(2):
        Session(tmp_path, uri, data=data).tracker.finish("FINISHED")
    for run in runs_of(uri):
        (logged,) = run.inputs.dataset_inputs
        assert (logged.dataset.name, logged.dataset.digest) == ("PhantomCXR", "0123456789ab")
        assert json.loads(logged.dataset.profile) == {"num_rows": 30, **counts}
        assert [(tag.key, tag.value) for tag in logged.tags] == [("mlflow.data.context", "training")]
    assert warnings_in(caplog) == []


def test_weights_in_a_local_folder_are_links_that_outlive_the_run_s_own(uri, tmp_path):
    session = Session(tmp_path, uri)
    folder = tmp_path / "round-000001"
    folder.mkdir()
    (folder / "server.pt").write_bytes(b"weights")
    (folder / "manifest.json").write_text("{}")
    session.tracker.log_artifact(folder, "best")
    session.tracker.log_artifact(folder, "best")
    session.tracker.finish("FINISHED")
    kept = Path(client_of(uri).get_run(session.run_id).info.artifact_uri.removeprefix("file://")) / "best" / folder.name
    assert (kept / "server.pt").samefile(folder / "server.pt")
    assert not (kept / "manifest.json").samefile(folder / "manifest.json")
    shutil.rmtree(folder)
    assert (kept / "server.pt").read_bytes() == b"weights"


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


@pytest.mark.parametrize("name", ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"])
def test_the_environment_names_what_the_configuration_does_not(name, uri, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/theirs.db")
    theirs = client_of(f"sqlite:///{tmp_path}/theirs.db")
    monkeypatch.setenv(
        name, {"MLFLOW_EXPERIMENT_NAME": "/Users/a/b"}.get(name) or theirs.create_experiment("/Users/a/b")
    )
    for resumed in (False, True):
        session = Session(tmp_path, None, resumed=resumed, experiment="default")
        session.tracker.finish("FINISHED")
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # a resumed run keeps its store
        assert [run.info.run_id for run in runs_of(f"sqlite:///{tmp_path}/theirs.db", "/Users/a/b")] == [session.run_id]
    Session(tmp_path, uri, name="named").tracker.finish("FINISHED")
    assert [run.info.run_name for run in runs_of(uri)] == ["named"]


def test_no_request_holds_more_than_a_thousand_metrics(uri, tmp_path, monkeypatch):
    clients = flaky(monkeypatch)
    session = Session(tmp_path, uri)
    session.log({f"client/{i}/loss": i / 3 for i in range(1001)}, 0)
    session.tracker.finish("FINISHED")
    metrics = client_of(uri).get_run(session.run_id).data.metrics
    assert metrics == {f"5-client/{i}/loss": i / 3 for i in range(1001)}
    assert max(clients[0].batches) <= 1000
    assert clients[0].calls.count("log_batch") <= 4


def test_an_artifact_that_is_gone_is_named_and_the_rest_goes_on(uri, tmp_path, caplog):
    session = Session(tmp_path, uri)
    session.tracker.log_artifact(tmp_path / "best.ckpt")
    session.tracker.log_artifact(session.metrics.path)
    session.log({"auroc": 0.5}, 0)
    session.tracker.finish("FINISHED")
    (warning,) = warnings_in(caplog)
    assert "best.ckpt" in warning
    assert "no longer exists" in warning
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


# What it costs, and what it needs.


def test_mlflow_is_imported_when_a_run_starts_and_sends_no_usage_data_and_starts_no_threads(tmp_path):
    """Many runs import it once, before their processes start."""
    code = (
        "import os, sys, threading; os.environ.pop('MLFLOW_DISABLE_TELEMETRY', None)\n"
        "from fedlit.tracking.loggers import Trackers; from fedlit.tracking.mlflow import MLflowTracker\n"
        "before, trackers = threading.active_count(), Trackers([MLflowTracker()])\n"
        "print('mlflow' in sys.modules)\n"
        "for name in trackers.imports: __import__(name)\n"
        "print('sqlalchemy' in sys.modules, os.environ['MLFLOW_DISABLE_TELEMETRY'], threading.active_count() - before)"
    )
    asked = execute(code, tmp_path)
    assert (asked.wait(), asked.output) == (0, "False\nTrue true 0\n")


def test_without_mlflow_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ConfigError, "install it with `pip install mlflow`, or run without it"):
        MLflowTracker()


@pytest.mark.parametrize("wrong", [{"tracking_uri": ""}, {"flush_seconds": 0}, {"finish_seconds": -1}])
def test_a_wrong_option_is_refused(wrong):
    with refused(ConfigError, *wrong):
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


def test_a_tracker_that_never_started_does_nothing():
    tracker = MLflowTracker()
    tracker.log_metrics({"loss": 1.0}, 0)
    tracker.log_artifact(Path("x"))
    tracker.finish("FINISHED")
    assert tracker.summary() is None
