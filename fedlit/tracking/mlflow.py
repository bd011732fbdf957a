"""MLflow as the tracker of a run: a thread of its own talks to the store; the training never waits for it."""

import atexit
import importlib.util
import json
import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from fedlit.core.errors import ConfigError
from fedlit.tracking.addresses import absolute, without_credentials
from fedlit.tracking.base import MetricsFile, RunInfo, RunStatus, Tracker
from fedlit.tracking.sender import CLOSING_PAUSE, Sender
from fedlit.tracking.store import SERVERS, WEB_SERVERS, MLflowStore

logger = logging.getLogger(__name__)

CHARTS = "model-metrics?workflowType=machine_learning"
"""The tab of a run's page that shows its metrics; MLflow 3 opens its pages for language models otherwise."""

ALL_RUNS = "runs?workflowType=machine_learning&compareRunsMode=CHART"
"""The charts of all runs of an experiment."""

EXIT_SECONDS = 3.0  # how long an interpreter that exits without finish() waits for the thread

# MLflow retries a dead server for minutes within one call by default; here the thread retries, and can stop.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing about a run leaves for a third party
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # summary() tells it
}


class MLflowTracker(Tracker):
    """Log a run to MLflow, as one MLflow run that a resumed run continues.

    A background thread does all talking to the store, the import of MLflow included: calls return at once and raise
    nothing. The thread sends what ``metrics.csv`` holds beyond what the store has; while the store is slow or down,
    that waits there in order. Nothing is lost: a resumed run sends what the store lacks. Each key and step is logged
    once, after a kill and a resume too. ``mlflow_run.json`` in the run directory holds the id of the MLflow run.

    Args:
        tracking_uri: MLflow's store: ``sqlite:///FILE``, another database, or a server, ``http(s)://...``.
        artifact_location: Folder or URI of the artifacts of an experiment that does not exist yet. By default
            ``./mlartifacts`` where the store is a database, and the server's choice where it is a server.
        tags: Tags of every run, beside those that fedlit sets.
        flush_seconds: How long metrics are gathered before they are sent, in seconds.
        finish_seconds: How long the end of a run waits at most for what has not been sent yet, in seconds.
        log_model: Log the best model as an MLflow model, beside its checkpoint.
    """

    def __init__(
        self,
        tracking_uri: str = "sqlite:///mlflow.db",
        artifact_location: str | None = None,
        tags: dict[str, str] | None = None,
        flush_seconds: float = 2.0,
        finish_seconds: float = 30.0,
        log_model: bool = True,
    ):
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "The MLflow logger needs MLflow, which is not installed: `pip install mlflow`, "
                "or run without it: `--logger false`."
            )
        if not tracking_uri:
            raise ConfigError("tracking_uri is empty: expected sqlite:///FILE, another database URI, or http(s)://...")
        if artifact_location and without_credentials(artifact_location) != artifact_location:
            raise ConfigError(
                f"artifact_location: expected an address without credentials, found {without_credentials(artifact_location)} "
                "with some; MLflow would keep them in its database and show them to everybody. Give them to the store's "
                "client in its own way, such as AWS_ACCESS_KEY_ID in the environment or ~/.netrc"
            )
        if flush_seconds <= 0 or finish_seconds < 0:
            raise ConfigError(
                f"flush_seconds must be above 0 and finish_seconds at least 0, found {flush_seconds} and "
                f"{finish_seconds}."
            )
        absolute(str(tracking_uri))  # refused now, and not by the thread
        self.tracking_uri = str(tracking_uri)
        self.artifact_location = artifact_location
        self.tags = dict(tags or {})
        self.flush_seconds, self.finish_seconds = flush_seconds, finish_seconds
        self.keeps_models = log_model
        self._sender: Sender | None = None

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Start the thread, which opens or continues the MLflow run as soon as the store answers."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        store = MLflowStore(self.tracking_uri, self.artifact_location, run)
        tags = {"mlflow.source.name": "fedlit", "mlflow.source.type": "LOCAL", **self.tags, **run.tags}
        self._sender = Sender(store, metrics, run.params, tags, self.flush_seconds)
        self._sender.start()
        atexit.register(self._at_exit)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Note the time of the metrics, which the thread reads from the metrics file."""
        if self._sender is not None:
            self._sender.note_time()

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Queue a file or directory; it is read when it is sent, in its state at that time."""
        if self._sender is not None:
            self._sender.add_file(Path(path), folder)

    def finish(self, status: RunStatus) -> None:
        """Send what is left and set the status, within ``finish_seconds``; warn of what could not be sent."""
        sender = self._sender
        if sender is None or sender.closing.is_set():
            return
        sender.close(status, self.finish_seconds)
        sender.join(self.finish_seconds + CLOSING_PAUSE)
        atexit.unregister(self._at_exit)
        unsent = sender.unsent()
        if unsent or not sender.terminated:
            logger.warning(
                "%d metrics and files of this session did not reach MLflow at %s%s. The metrics are in %s. "
                "To send what is missing, resume the finished run once MLflow answers: --ckpt_path last",
                unsent,
                without_credentials(self.tracking_uri),
                "" if sender.terminated else f", nor did the status {status}",
                sender.metrics.path,
            )

    def summary(self) -> str | None:
        """Say where the run's page is, and for a store without a server the command that serves it."""
        if self._sender is None:
            return None
        store = self._sender.store
        uri = without_credentials(self.tracking_uri)
        if store.run_id is None:
            return f"MLflow at {uri} was not reached; the metrics are in {self._sender.metrics.path}"
        if uri.startswith(SERVERS) and not uri.startswith(WEB_SERVERS):
            return f"MLflow: run {store.run_id} at {uri}"
        return opening(uri, f"#/experiments/{store.experiment_id}/runs/{store.run_id}/{CHARTS}")

    def _at_exit(self) -> None:
        if self._sender is not None and not self._sender.closing.is_set():
            self._sender.close(None, EXIT_SECONDS)
            self._sender.join(EXIT_SECONDS)


def opening(uri: str, page: str = "") -> str:
    """Give the command that serves a store, and the address of a page; of a server its address alone."""
    if uri.startswith(SERVERS):
        return f"MLflow: {uri.rstrip('/')}/{page}" if page and uri.startswith(WEB_SERVERS) else f"MLflow: {uri}"
    return f"mlflow ui --backend-store-uri {shlex.quote(uri)}" + (f"\nhttp://127.0.0.1:5000/{page}" if page else "")


def noted_opening(directory: Path) -> str:
    """Give :func:`opening` of the experiment and store that a run directory has noted; "" where it has none."""
    try:
        noted = json.loads((directory / "mlflow_run.json").read_text())
        experiment = noted.get("experiment_id")  # runs of earlier versions have not noted it
        return opening(noted["tracking_uri"], f"#/experiments/{experiment}/{ALL_RUNS}" if experiment else "")
    except (FileNotFoundError, ValueError, KeyError):  # a run without MLflow, or a note that was cut
        return ""
