"""Sessions of training that are tracked in MLflow, and stores that fail."""

import json
import logging
from pathlib import Path

from fedlit.tracking import store as mlflow_store
from fedlit.tracking.base import MetricsFile, RunInfo
from fedlit.tracking.mlflow import MLflowTracker
from fedlit.tracking.names import key_of

connect = mlflow_store.connect


class Session:
    """What the training does: each metric goes to the file, then to the tracker."""

    def __init__(
        self,
        folder,
        uri,
        resumed=False,
        params=None,
        tags=None,
        finish_seconds=30.0,
        data=None,
        name="fedavg",
        experiment="nih",
        **options,
    ):
        self.directory = Path(folder) / "runs" / "nih" / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.metrics = MetricsFile(self.directory / "metrics.csv")
        self.tracker = MLflowTracker(uri, flush_seconds=0.02, finish_seconds=finish_seconds, **options)
        info = RunInfo(self.directory, experiment, name, params or {}, tags or {}, resumed, data)
        self.tracker.start(info, self.metrics)

    def log(self, metrics, step):
        self.metrics.append(metrics, step)
        self.tracker.log_metrics(metrics, step)

    def all_arrived(self):
        return self.tracker._sender.unsent() == 0

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
            self.calls.append(name)
            how = self.fails(len(self.calls), name)
            metrics = kwargs.get("metrics", [])
            self.batches.append(len(metrics))
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


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
