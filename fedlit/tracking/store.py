"""Requests to MLflow; the only module that uses MLflow's client."""

import getpass
import hashlib
import json
import logging
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import yaml

from fedlit.core.errors import causes
from fedlit.core.system.files import link, whole
from fedlit.tracking.addresses import absolute, hidden, store_address, without_credentials
from fedlit.tracking.base import RunInfo, RunStatus
from fedlit.tracking.names import DEFAULT_EXPERIMENT

logger = logging.getLogger(__name__)

PARENT_ID = "mlflow.parentRunId"
"""MLflow's tag with the id of the run above."""

START = "mlflow.fedlit.start"
"""Tag, which MLflow does not show, of the start of a run: two runs may share their name and the time of their start."""

TAG_LENGTH = 5000  # of a value; a server of MLflow 2 accepts no more
WEB_SERVERS = ("http://", "https://")
SERVERS = (*WEB_SERVERS, "databricks", "uc:")

ARTIFACTS = "mlartifacts"
"""Default folder of the artifacts of a database."""

WEIGHTS = (".pt", ".safetensors")
"""Suffixes of files with weights or states of clients."""

_IMPORTING = threading.Lock()


class MLflowStore:
    """A run in MLflow. Each method sends one or a few requests, raises their errors, and may be called again.

    Args:
        artifact_location: Folder or URI of the artifacts of a new experiment; None is the default of the store.
    """

    def __init__(self, tracking_uri: str, artifact_location: str | None, run: RunInfo):
        self.uri = tracking_uri
        self.run = run
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self.started_ms = int(time.time() * 1000)
        self.ended_ms: int | None = None  # of a run that has ended before it is sent; None is now
        self.params: dict[str, str] = {}  # of a continued run
        self._steps: dict[str, set[int]] = {}  # known steps of each metric
        self._unknown: set[str] = set()  # metrics that have other steps
        self._client: Any = None
        self._may_continue = run.resumed
        # Resolved now, because the working directory may change before the thread uses it.
        self._absolute_uri = absolute(tracking_uri)
        self._artifact_location = artifact_location
        if artifact_location is None and not tracking_uri.startswith(SERVERS):
            self._artifact_location = ARTIFACTS
        if self._artifact_location is not None and "://" not in self._artifact_location:
            self._artifact_location = Path(self._artifact_location).absolute().as_uri()
        self._whole: MLflowStore | None = None  # the run of which this run is a phase
        if run.phase_of is not None:
            whole_run = RunInfo(run.phase_of, run.experiment, run.phase_of.name, {}, {}, resumed=True)
            self._whole = MLflowStore(tracking_uri, artifact_location, whole_run)

    def open(self) -> None:
        """Connect, find or create the experiment, continue or create the run, and store its id."""
        if self._client is None:
            self._client = connect(self._absolute_uri)
        if self._whole is not None:
            self._whole.open()
        if self._may_continue:
            self._continue_run()
            self._may_continue = False
        if self.run_id is None:
            self._create_run()
        self._write_id()

    def is_active(self) -> bool:
        """Check if the run still exists."""
        return active_run(self._client, self.run_id) is not None

    def log_metrics(self, values: Sequence[tuple[str, float, int, int]]) -> None:
        """Log the values whose key and step the run lacks: key, value, time in milliseconds and step of each.

        A failed request may have been executed. Repeating it is harmless, because MLflow's databases keep one value of
        the same key, time and step.
        """
        for key in {value[0] for value in values} & self._unknown:
            self._steps[key] = {metric.step for metric in self._client.get_metric_history(self.run_id, key)}
            self._unknown.remove(key)
        entity = import_mlflow().entities.Metric
        if metrics := [entity(*value) for value in values if value[-1] not in self._steps.get(value[0], ())]:
            self._client.log_batch(self.run_id, metrics=metrics, synchronous=True)

    def forget_steps(self) -> None:
        """Request the steps of each metric again before more of its values are logged."""
        self._unknown = set(self._client.get_run(self.run_id).data.metrics)
        self._steps = {}

    def log_params(self, params: Sequence[tuple[str, str]]) -> None:
        """Log parameters, which cannot change in MLflow."""
        entities = [import_mlflow().entities.Param(key, value) for key, value in params]
        self._client.log_batch(self.run_id, params=entities, synchronous=True)

    def log_tags(self, tags: Sequence[tuple[str, str]]) -> None:
        """Set tags, cut to a length that MLflow accepts."""
        entities = [import_mlflow().entities.RunTag(key, cut(value, TAG_LENGTH)) for key, value in tags]
        self._client.log_batch(self.run_id, tags=entities, synchronous=True)

    def log_data(self) -> None:
        """Log the data of the run as a dataset, with their digest and counts."""
        if (data := self.run.data) is None:
            return
        entities = import_mlflow().entities
        source = json.dumps({"tags": {"class": data.source}})
        profile = json.dumps({"num_rows": data.counts.get("training_images"), **data.counts})
        dataset = entities.Dataset(data.name, data.digest, "code", source, profile=profile)
        context = entities.InputTag("mlflow.data.context", "training")
        self._client.log_inputs(self.run_id, [entities.DatasetInput(dataset, [context])])

    def log_artifact(self, path: Path, folder: str) -> None:
        """Log a file or a directory; a model is added to the list of the run's models.

        In a folder of this machine, weights are links, which take no space.
        """
        if not path.exists():
            raise FileNotFoundError(f"{path} no longer exists")
        artifacts = self._client.get_run(self.run_id).info.artifact_uri if path.is_dir() else ""
        if artifacts.startswith("file:"):
            target = Path(url2pathname(urlparse(artifacts).path)) / folder / path.name
            shutil.copytree(path, target, copy_function=_linked, dirs_exist_ok=True)
        else:
            self._client.log_artifact(self.run_id, str(path), folder or None)
        if (path / "MLmodel").is_file():
            self._list_model(path)

    def terminate(self, status: RunStatus) -> None:
        """Set the status and the end time of the run."""
        self._client.set_terminated(self.run_id, status, self.ended_ms)
        if self._whole is not None and status != "FINISHED":
            self._whole.terminate(status)

    def _list_model(self, folder: Path) -> None:
        """Mark the artifact as a model, so that MLflow's pages show its signature and can register it."""
        described = yaml.safe_load((folder / "MLmodel").read_text())
        listed = {key: described[key] for key in ("flavors", "utc_time_created", "model_uuid") if key in described}
        listed |= {"run_id": self.run_id, "artifact_path": folder.name}
        self.log_tags([("mlflow.log-model.history", json.dumps([listed]))])

    def _continue_run(self) -> None:
        noted = noted_run(self.run.directory, self.uri)
        if noted is None or without_credentials(noted[0]) != without_credentials(self.uri):
            return
        run = active_run(self._client, noted[1])
        if run is None:
            logger.warning("The MLflow run %s no longer exists; a new one receives all metrics of the run.", noted[1])
            return
        self._client.update_run(noted[1], status="RUNNING")
        self.params = dict(run.data.params)
        self.experiment_id, self.run_id = run.info.experiment_id, noted[1]
        self._unknown = set(run.data.metrics)

    def _create_run(self) -> None:
        if self.experiment_id is None:
            self.experiment_id = self._find_or_create_experiment()
        # A request whose response was lost may have created the run.
        here = f"{platform.node()} {self.run.directory.absolute()} {self.started_ms}"
        start = hashlib.sha256(here.encode(errors="surrogateescape")).hexdigest()[:32]
        begun = self._client.search_runs([self.experiment_id], filter_string=f"tags.`{START}` = '{start}'")
        self.run_id = next((run.info.run_id for run in begun), None)
        if self.run_id is None:
            tags = {"mlflow.user": user(), START: start} | ({PARENT_ID: self._whole.run_id} if self._whole else {})
            options = {"start_time": self.started_ms, "run_name": self.run.name, "tags": tags}
            self.run_id = self._client.create_run(self.experiment_id, **options).info.run_id

    def _find_or_create_experiment(self) -> str:
        kind, value = experiment_key(self.run.experiment)
        if kind == "experiment_id":
            return self._client.get_experiment(value).experiment_id
        experiment = self._client.get_experiment_by_name(value)
        if experiment is None:  # if another run creates it meanwhile, the next attempt finds it
            return self._client.create_experiment(value, artifact_location=self._artifact_location)
        if experiment.lifecycle_stage != "active":
            raise RuntimeError(was_deleted(value, experiment.experiment_id))
        return experiment.experiment_id

    def _write_id(self) -> None:
        note = {"run_id": self.run_id, "experiment_id": self.experiment_id}
        note["tracking_uri"] = without_credentials(self.uri)
        with whole(self.run.directory / "mlflow_run.json") as draft:
            draft.write_text(json.dumps(note, indent=2) + "\n")


def import_mlflow() -> ModuleType:
    """Import MLflow and the parts of it that fedlit uses. The first import takes seconds.

    A lock prevents parallel imports: MLflow's modules have circular imports, and two threads that import them at the
    same time leave MLflow unusable for the rest of the process.
    """
    with _IMPORTING:
        import mlflow
        import mlflow.artifacts
        import mlflow.models
        import mlflow.pyfunc
        import mlflow.types

        return mlflow


def connect(tracking_uri: str) -> Any:
    """Create an MlflowClient. Creating the tables of a new database takes seconds.

    Relative addresses refer to the current working directory; MLflow itself would cache the first one.
    """
    tracking_uri = absolute(tracking_uri)
    client = import_mlflow().MlflowClient
    # The log of creating a database would disturb the progress display; errors are reported here.
    for name, level in (("alembic", logging.WARNING), ("mlflow.store.db.utils", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
    if tracking_uri.startswith("sqlite:////"):
        file = Path(tracking_uri.removeprefix("sqlite:///").partition("?")[0])
        if not file.exists():
            create_database(file, client)
    return client(tracking_uri=tracking_uri)


def create_database(file: Path, client: Callable[..., Any]) -> None:
    """Create a database with MLflow's tables atomically, because an incomplete one would be unusable."""
    with whole(file, replace=False) as draft:  # another run may create it first
        client(tracking_uri=f"sqlite:///{draft.as_posix()}").search_experiments(max_results=1)


def experiment_key(name: str) -> tuple[str, str]:
    """Return what names an experiment in MLflow, ``experiment_name`` or ``experiment_id``, and its value.

    The environment may name another experiment for the runs whose configuration names none.
    """
    if name == DEFAULT_EXPERIMENT:
        if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return "experiment_id", experiment_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
    return "experiment_name", name


def was_deleted(name: str, experiment_id: str) -> str:
    """Return the message about an experiment that was deleted in MLflow."""
    return (
        f"the experiment {name!r} was deleted in MLflow; choose another one with --experiment, or restore it with "
        f"`mlflow experiments restore --experiment-id {experiment_id}`"
    )


def active_run(client: Any, run_id: str) -> Any:
    """Return a run, or None if it was deleted."""
    try:
        run = client.get_run(run_id)
    except Exception as error:
        if error_code(error) == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def noted_run(directory: Path, tracking_uri: str | None = None) -> tuple[str, str] | None:
    """Return the store and the id of a directory's run in MLflow, or None if it has none.

    The directory has the address without credentials; ``tracking_uri``, or else the environment's address, replaces the
    same store.
    """
    try:
        note = json.loads((directory / "mlflow_run.json").read_text())
        noted, run_id = note["tracking_uri"], note["run_id"]
    except (OSError, ValueError, KeyError):  # a run without MLflow, or one that ended before MLflow answered
        return None
    whole_address = store_address(tracking_uri)
    return (whole_address if without_credentials(whole_address) == noted else noted), run_id


def error_code(error: Exception) -> str | None:
    """Return MLflow's code of an error, or None for other errors."""
    return getattr(error, "error_code", None)


def is_refused(error: Exception) -> bool:
    """Check if MLflow rejects a request as invalid, or a proxy as too large. All other errors may be temporary."""
    # MLflow reports temporary errors of its database as BAD_REQUEST, and a proxy's 413 as an internal error.
    invalid = error_code(error) in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
    return invalid or "failed with error code 413" in str(error)


def is_lasting(error: Exception) -> bool:
    """Check if an artifact can never be sent: a file does not exist, access is denied, or a package is missing."""
    lasting = (FileNotFoundError, PermissionError, NotADirectoryError, ImportError)
    return isinstance(error, lasting) or is_refused(error)


def first_line(error: Exception, uri: str = "") -> str:
    """Return an error's type and the first line of its message, without the credentials of a URI."""
    line = (str(error).splitlines() or [""])[0]
    return cut(f"{type(error).__name__}: {hidden(line, uri)}", 300)


def cause(error: Exception, uri: str = "") -> str:
    """Return the system's reason for a failed request, such as ``connection refused``, or the error's first line."""
    reasons = [each.strerror.lower() for each in causes(error) if isinstance(each, OSError) and each.strerror]
    return reasons[-1] if reasons else first_line(error, uri)


def cut(value: Any, length: int) -> str:
    """Return a value as text, with ``...`` at the end if it is too long."""
    text = str(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def _linked(source: str, target: str) -> None:
    """Copy a file, or link it if it holds weights; checkpoints and models are replaced and never written again."""
    Path(target).unlink(missing_ok=True)
    if Path(source).suffix in WEIGHTS:
        link(Path(source), Path(target))
    else:
        shutil.copy2(source, target)


def user() -> str:
    """Return the name of the user, as MLflow shows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"
