"""The MLflow tracker, whose thread talks to the store while training goes on, and the check of the store before."""

import atexit
import copy
import importlib.util
import json
import logging
import os
import shlex
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import unwritable
from fedlit.tracking.addresses import DATABASE, absent, absolute, store_address, without_credentials
from fedlit.tracking.base import MetricsFile, RunGroup, RunInfo, RunStatus, Tracker
from fedlit.tracking.journal import FILE, Journal, Notes, is_later
from fedlit.tracking.parents import log_parents
from fedlit.tracking.sender import CLOSING_PAUSE, Sender
from fedlit.tracking.store import (
    ARTIFACTS,
    SERVERS,
    WEB_SERVERS,
    MLflowStore,
    cause,
    connect,
    experiment_key,
    noted_run,
    was_deleted,
)

logger = logging.getLogger(__name__)

CHARTS = "model-metrics?workflowType=machine_learning"
"""Path of the metrics tab on a run's page; by default MLflow 3 opens its pages for language models."""

ALL_RUNS = "runs?workflowType=machine_learning&compareRunsMode=CHART"
"""Path of the charts of all runs in an experiment."""

NOTES_SECONDS = 300.0  # longest wait for a store that gets a run that has ended
EXIT_SECONDS = 3.0  # longest wait for the thread if the interpreter exits without finish()

# By default MLflow retries a dead server for minutes in one call; instead, the thread retries and can stop.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # no data of a run for third parties
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # summary() returns it
}

OTHERWISE = "name another store with --logger.tracking_uri, or run without MLflow: --logger false"

CHECK_SECONDS = 2.0
"""Longest wait for a server. One that does not answer stops no run, and the thread reports it."""


def prepare(**defaults: str) -> bool:
    """Set defaults of MLflow's environment, those above and more; return True if MLflow is installed."""
    for name, value in (ENVIRONMENT | defaults).items():
        os.environ.setdefault(name, value)
    return importlib.util.find_spec("mlflow") is not None


class MLflowTracker(Tracker):
    """Log a run to MLflow, as one MLflow run that a resumed run continues.

    A background thread does all communication with the store, including the import of MLflow: calls return immediately
    and raise no errors. The thread sends the rows of ``metrics.csv`` that the store lacks, so a store that is slow or
    unavailable loses nothing: a resumed run sends the rest. Each key and step is logged only once, after an outage and
    after a resume; only if a server executes a request of a killed run after its resume, its values are there twice.
    ``mlflow_run.json`` in the run directory contains the id of the MLflow run.

    Args:
        tracking_uri: MLflow's store: ``sqlite:///FILE``, another database, or a server, ``http(s)://...``. By default
            ``MLFLOW_TRACKING_URI`` in the environment, or ``sqlite:///mlflow.db``; a resumed run keeps its store.
        artifact_location: Folder or URI for the artifacts of a new experiment. By default ``./mlartifacts`` for a
            database; a server chooses its own.
        tags: Additional tags of every run.
        flush_seconds: Seconds between batches of metrics.
        finish_seconds: Longest wait for unsent data at the end of a run, in seconds.
        log_model: Whether to log the best model as an MLflow model, in addition to its checkpoint.
    """

    imports = ("fedlit.tracking.imported_mlflow",)

    def __init__(
        self,
        tracking_uri: str | None = None,
        artifact_location: str | None = None,
        tags: dict[str, str] | None = None,
        flush_seconds: float = 2.0,
        finish_seconds: float = 30.0,
        log_model: bool = True,
    ):
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "logger: MLflow is not installed; install it with `pip install mlflow`, or run without it: "
                "`--logger false`"
            )
        if tracking_uri == "":
            raise ConfigError(
                "tracking_uri: expected sqlite:///FILE, another database URI, or http(s)://..., found an empty value"
            )
        if artifact_location and without_credentials(artifact_location) != artifact_location:
            raise ConfigError(
                "artifact_location: expected an address without credentials, found "
                f"{without_credentials(artifact_location)} with credentials, which MLflow would store in its database "
                "and show to all users; pass them to the store's client, such as AWS_ACCESS_KEY_ID in the environment "
                "or ~/.netrc"
            )
        if not (flush_seconds > 0 and finish_seconds >= 0):  # no annotations, which the command would import NumPy for
            raise ConfigError(
                f"logger: expected flush_seconds above 0 and finish_seconds of at least 0, found {flush_seconds} and "
                f"{finish_seconds}"
            )
        self.tracking_uri = store_address(tracking_uri)
        self._by_default = self.tracking_uri == DATABASE and not tracking_uri
        absolute(self.tracking_uri)  # raises errors now, not in the thread
        self.artifact_location = artifact_location
        self.tags = dict(tags or {})
        self.flush_seconds, self.finish_seconds = flush_seconds, finish_seconds
        self.keeps_models = log_model
        self._sender: Sender | Journal | None = None

    def of_phase(self) -> "MLflowTracker":
        """Return a tracker of a phase, whose MLflow run is shown below that of the whole run."""
        tracker = copy.copy(self)
        tracker.keeps_models = False
        return tracker

    def check(self, experiment: str, directory: Path | None) -> None:
        """Refuse a deleted experiment, and a database that cannot be written."""
        if is_later():
            return
        self._keep_store(directory)
        check_store(self.tracking_uri, experiment, self.artifact_location)

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Start the thread, which creates or continues the MLflow run as soon as the store responds."""
        tags = {"mlflow.source.name": "fedlit", "mlflow.source.type": "LOCAL", **self.tags, **run.tags}
        if is_later():
            self._sender = Journal(run, metrics, tags)
        else:
            prepare()
            self._keep_store(run.directory if run.resumed else None)
            store = MLflowStore(self.tracking_uri, self.artifact_location, run)
            self._sender = Sender(store, metrics, run.params, tags, self.flush_seconds)
        self._sender.start()
        atexit.register(self._at_exit)

    def send_notes(self, directory: Path) -> bool:
        """Send what a finished run on a cluster has noted, with its times; return whether MLflow has taken all.

        If it has not, the run keeps its notes, and a warning says so.
        """
        if (notes := Notes.read(directory)) is None:
            return False
        prepare()
        store = MLflowStore(self.tracking_uri, self.artifact_location, notes.run)
        store.started_ms, store.ended_ms = notes.began, notes.ended
        metrics = MetricsFile(directory / "metrics.csv")
        sender = Sender(store, metrics, notes.run.params, notes.run.tags, self.flush_seconds)
        sender.send_at_once(notes.times, notes.files, NOTES_SECONDS)
        if sent := sender.terminated and not sender.unsent():
            (directory / FILE).unlink()
        else:
            logger.warning(
                "MLflow at %s did not take all of %s. To send the rest when MLflow is available: fedlit runs log %s",
                without_credentials(self.tracking_uri),
                directory,
                shlex.quote(str(directory)),
            )
        return sent

    def _keep_store(self, resumed: Path | None) -> None:
        """Use the store of a resumed run, which the environment of its first start may have named."""
        if self._by_default and resumed is not None and (noted := noted_run(resumed)):
            self.tracking_uri = noted[0]

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the time of the metrics, which the thread reads from the metrics file."""
        if self._sender is not None:
            self._sender.note_time()

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Queue a file or directory, which is read when it is sent."""
        if self._sender is not None:
            self._sender.add_file(Path(path), folder)

    def finish(self, status: RunStatus) -> None:
        """Send the remaining data and the status within ``finish_seconds``; log a warning if this fails."""
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
                "To send them, resume the finished run when MLflow is available: --ckpt_path last",
                unsent,
                without_credentials(self.tracking_uri),
                "" if sender.terminated else f", nor did the status {status}",
                sender.metrics.path,
            )

    def log_groups(self, groups: Sequence[RunGroup]) -> None:
        """Log the means over seeds; log a warning if this fails."""
        prepare()
        try:
            log_parents(self.tracking_uri, groups)
        except Exception as error:
            logger.warning(
                "MLflow at %s did not take the means over seeds (%s). To send them, repeat the command when MLflow is "
                "available",
                without_credentials(self.tracking_uri),
                cause(error, self.tracking_uri),
            )

    def summary(self) -> str | None:
        """Return the address of the run's page and, for a store without a server, the command that serves it."""
        if self._sender is None:
            return None
        if isinstance(self._sender, Journal):
            return f"to show this run in MLflow: fedlit runs log {shlex.quote(str(self._sender.run.directory))}"
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
    """Return the command that serves a store and the address of a page; for a server, only the address."""
    if uri.startswith(SERVERS):
        return f"MLflow: {uri.rstrip('/')}/{page}" if page and uri.startswith(WEB_SERVERS) else f"MLflow: {uri}"
    return f"mlflow ui --backend-store-uri {shlex.quote(uri)}" + (f"\nhttp://127.0.0.1:5000/{page}" if page else "")


def noted_opening(directory: Path) -> str:
    """Return :func:`opening` for the MLflow experiment of a run directory, or "" if it has none."""
    try:
        note = json.loads((directory / "mlflow_run.json").read_text())
        return opening(note["tracking_uri"], f"#/experiments/{note['experiment_id']}/{ALL_RUNS}")
    except (FileNotFoundError, ValueError, KeyError):  # a run without MLflow, or an incomplete file
        return ""


def add_files(uri: str, run_id: str, files: Sequence[Path], folder: str) -> str | None:
    """Add files to a folder of a run's artifacts; return the reason if this fails, else None."""
    if not prepare():
        return "the package mlflow is not installed"
    if missing := absent(uri):
        return missing
    try:
        client = connect(uri)
        for file in files:
            client.log_artifact(run_id, str(file), folder)
    except Exception as error:
        return cause(error, uri)
    return None


def check_store(uri: str, experiment: str, artifact_location: str | None = None) -> None:
    """Refuse files that cannot be written, and an experiment that was deleted in a SQLite file or at a server.

    MLflow itself is not imported, which would take seconds.

    Raises:
        ConfigError: No run of the experiment can be logged to the store.
    """
    kind, value = experiment_key(experiment)
    if uri.startswith("sqlite:///"):
        found = _in_database(absolute(uri), kind, value)
    elif uri.startswith(WEB_SERVERS):
        found = _at_server(uri, kind, value)
    else:
        return
    folder = artifact_location or ("" if uri.startswith(WEB_SERVERS) else ARTIFACTS)
    if found is None and folder and "://" not in folder and (reason := unwritable(Path(folder))):
        raise ConfigError(f"artifact_location: cannot create {folder}: {reason}")
    if found is not None and found[1] == "deleted":
        raise ConfigError(f"MLflow at {without_credentials(uri)}: {was_deleted(value, found[0])}; or {OTHERWISE}")


def _in_database(uri: str, kind: str, value: str) -> tuple[str, str] | None:
    """Return an experiment's id and its state, or None if it does not exist or the file is locked."""
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if uri.startswith(("sqlite:///:memory:", "sqlite:///file:")):
        return None
    if reason := "" if file.exists() else unwritable(file.parent):
        raise ConfigError(f"tracking_uri: cannot create {file}: {reason}; {OTHERWISE}")
    if not file.exists():
        return None
    column = {"experiment_name": "name", "experiment_id": "CAST(experiment_id AS TEXT)"}[kind]
    query = f"SELECT CAST(experiment_id AS TEXT), lifecycle_stage FROM experiments WHERE {column} = ?"
    try:
        with closing(sqlite3.connect(file, timeout=CHECK_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # refused if the file or its folder is read-only
            return database.execute(query, (value,)).fetchone()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error) or "no such table" in str(error):  # of another run, or a new database
            return None
        raise ConfigError(
            f"tracking_uri: expected a SQLite database that can be written, found {file}: {error}; {OTHERWISE}"
        ) from error


def _at_server(uri: str, kind: str, value: str) -> tuple[str, str] | None:
    """Return an experiment's id and its state, or None if it does not exist or the server does not say."""
    import requests

    call = {"experiment_name": "get-by-name", "experiment_id": "get"}[kind]
    address = f"{uri.rstrip('/')}/api/2.0/mlflow/experiments/{call}?{kind}={quote(value, safe='')}"
    user, password, token = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD", "TOKEN"))
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        login = (user, password) if user and password else None
        answer = requests.get(address, headers=headers, auth=login, timeout=CHECK_SECONDS)
        experiment = answer.json()["experiment"]
        return experiment["experiment_id"], experiment["lifecycle_stage"]
    except (OSError, ValueError, KeyError, TypeError):  # down, slow, a login page, or an experiment to be created
        return None
