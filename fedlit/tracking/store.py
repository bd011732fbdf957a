"""The requests to MLflow that the tracker makes: the only module that knows MLflow's client."""

import getpass
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from fedlit.core.system.files import whole
from fedlit.tracking.addresses import absolute, hidden, without_credentials
from fedlit.tracking.base import RunInfo, RunStatus

logger = logging.getLogger(__name__)

TAG_LENGTH = 5000  # of a value, in MLflow 2.16; later versions take more
WEB_SERVERS = ("http://", "https://")
SERVERS = (*WEB_SERVERS, "databricks", "uc:")

_IMPORTING = threading.Lock()


class LoggedValue(NamedTuple):
    """One value of one metric, with the time at which it was logged."""

    key: str
    value: float
    step: int
    time_ms: int


class MLflowStore:
    """One run in MLflow. Each method is one request, or a few: it raises if one fails, and may be called again.

    Args:
        tracking_uri: Where MLflow keeps its runs.
        artifact_location: Folder or URI of the artifacts of a new experiment; None is the default of the store.
        run: The run, whose directory holds the id of the MLflow run.
    """

    def __init__(self, tracking_uri: str, artifact_location: str | None, run: RunInfo):
        self.uri = tracking_uri
        self.run = run
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self.started_ms = int(time.time() * 1000)
        self.params: dict[str, str] = {}  # of a run that is continued
        self._steps: dict[str, set[int]] = {}  # what the run has of a metric, where that was asked
        self._unsure: set[str] = set()  # metrics of which the run may have steps that are not in _steps
        self._client: Any = None
        self._may_continue = run.resumed
        self._asked_for_run = False
        # Resolved now: the thread may come to it after somebody changed the working directory.
        self._absolute_uri = absolute(tracking_uri)
        self._artifact_location = artifact_location
        if artifact_location is None and not tracking_uri.startswith(SERVERS):
            self._artifact_location = "mlartifacts"
        if self._artifact_location is not None and "://" not in self._artifact_location:
            self._artifact_location = Path(self._artifact_location).absolute().as_uri()

    def open(self) -> None:
        """Connect, find or create the experiment, continue or create the run, and note its id."""
        if self._client is None:
            self._client = connect(self._absolute_uri)
        if self._may_continue:
            self._continue_run()
            self._may_continue = False
        if self.run_id is None:
            self._create_run()
        self._write_id()

    def is_active(self) -> bool:
        """Whether the run is still there."""
        return self._active_run(self.run_id) is not None

    def log_metrics(self, values: Sequence[LoggedValue]) -> None:
        """Log those of the values, of increasing steps, whose key and step the run does not have yet."""
        first_steps = {value.key: value.step for value in reversed(values)}
        self._ask_for_steps({key: step for key, step in first_steps.items() if key in self._unsure})
        lacking = [value for value in values if value.step not in self._steps.get(value.key, ())]
        if lacking:
            # A request that fails does not tell whether it was carried out, or half of it.
            keys = {value.key for value in lacking}
            self._unsure |= keys
            entity = import_mlflow().entities.Metric
            metrics = [entity(value.key, value.value, value.time_ms, value.step) for value in lacking]
            self._client.log_batch(self.run_id, metrics=metrics, synchronous=True)
            self._unsure -= keys

    def log_params(self, params: Sequence[tuple[str, str]]) -> None:
        """Log parameters, which MLflow does not change again."""
        entities = [import_mlflow().entities.Param(key, value) for key, value in params]
        self._client.log_batch(self.run_id, params=entities, synchronous=True)

    def log_tags(self, tags: Sequence[tuple[str, str]]) -> None:
        """Set tags, cut to a length that MLflow takes."""
        entities = [import_mlflow().entities.RunTag(key, cut(value, TAG_LENGTH)) for key, value in tags]
        self._client.log_batch(self.run_id, tags=entities, synchronous=True)

    def log_artifact(self, path: Path, folder: str) -> None:
        """Log a file or a directory, and list it among the models of the run where it is one."""
        if not path.exists():
            raise FileNotFoundError(f"{path} is no longer there")
        self._client.log_artifact(self.run_id, str(path), folder or None)
        if (path / "MLmodel").is_file():
            self._list_model(path)

    def terminate(self, status: RunStatus) -> None:
        """Set how the run ended, and that it has ended now."""
        self._client.set_terminated(self.run_id, status)

    def _ask_for_steps(self, first_steps: dict[str, int]) -> None:
        """Ask which steps the run has of metrics, given the first step that matters of each."""
        if not first_steps:
            return
        latest = _latest_steps(self._client.get_run(self.run_id))
        for key, first in first_steps.items():
            last = latest.get(key, -1)
            # The last step says enough of a metric that has no later one: a request less for each metric.
            history = self._client.get_metric_history(self.run_id, key) if first < last else ()
            self._steps[key] = {last, *(metric.step for metric in history)}
            self._unsure.discard(key)

    def _list_model(self, folder: Path) -> None:
        """Have MLflow's pages show the artifact as a model, with its signature, and offer to register it."""
        described = yaml.safe_load((folder / "MLmodel").read_text())
        listed = {key: described[key] for key in ("flavors", "utc_time_created", "model_uuid") if key in described}
        listed |= {"run_id": self.run_id, "artifact_path": folder.name}
        self.log_tags([("mlflow.log-model.history", json.dumps([listed]))])

    def _active_run(self, run_id: str) -> Any:
        try:
            run = self._client.get_run(run_id)
        except Exception as error:
            if error_code(error) == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _continue_run(self) -> None:
        run_id = self._read_id()
        if run_id is None:
            return
        run = self._active_run(run_id)
        if run is None:
            logger.warning("The MLflow run %s is gone; a new one gets all metrics of the run.", run_id)
            return
        self._client.update_run(run_id, status="RUNNING")
        self._unsure = set(_latest_steps(run))
        self.params = dict(run.data.params)
        self.experiment_id, self.run_id = run.info.experiment_id, run_id

    def _create_run(self) -> None:
        if self.experiment_id is None:
            self.experiment_id = self._find_or_create_experiment()
        # A request whose answer was lost may have created the run: its start time tells it from all others.
        if self._asked_for_run:
            same_start = f"attributes.start_time = {self.started_ms}"
            for candidate in self._client.search_runs([self.experiment_id], filter_string=same_start):
                if candidate.info.run_name == self.run.name:
                    self.run_id = candidate.info.run_id
                    return
        self._asked_for_run = True
        options = {"start_time": self.started_ms, "run_name": self.run.name, "tags": {"mlflow.user": _user()}}
        self.run_id = self._client.create_run(self.experiment_id, **options).info.run_id

    def _find_or_create_experiment(self) -> str:
        name, options = self.run.experiment, {"artifact_location": self._artifact_location}
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self._client.create_experiment(name, **options)
            except Exception:
                # Another run may have created it in between; versions of MLflow report that differently.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            raise RuntimeError(
                f"the experiment {name!r} was deleted: restore it, or choose another name; "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
            )
        return experiment.experiment_id

    def _read_id(self) -> str | None:
        try:
            noted = json.loads((self.run.directory / "mlflow_run.json").read_text())
            return (
                noted["run_id"] if without_credentials(noted["tracking_uri"]) == without_credentials(self.uri) else None
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s/mlflow_run.json cannot be read (%s); a new MLflow run.", self.run.directory, error)
            return None

    def _write_id(self) -> None:
        noted = {"run_id": self.run_id, "experiment_id": self.experiment_id}
        noted["tracking_uri"] = without_credentials(self.uri)
        with whole(self.run.directory / "mlflow_run.json") as draft:
            draft.write_text(json.dumps(noted, indent=2) + "\n")


def import_mlflow() -> ModuleType:
    """Import MLflow and the parts of it that fedlit uses. The first import takes seconds.

    One thread at a time, and all at once: MLflow's modules import each other in circles, and two threads that meet in
    there leave it broken for the rest of the process.
    """
    with _IMPORTING:
        import mlflow
        import mlflow.artifacts
        import mlflow.models
        import mlflow.pyfunc
        import mlflow.types

        return mlflow


def connect(tracking_uri: str) -> Any:
    """Make an MlflowClient. The tables of a new database take seconds.

    A relative address is that of a file in this working directory: MLflow would keep one client of it for all.
    """
    tracking_uri = absolute(tracking_uri)
    client = import_mlflow().MlflowClient
    # Its creation of a database, line by line, would run through the progress display; errors are told here.
    for name, level in (("alembic", logging.WARNING), ("mlflow.store.db.utils", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
    if tracking_uri.startswith("sqlite:////"):
        file = Path(tracking_uri.removeprefix("sqlite:///").partition("?")[0])
        if not file.exists():
            create_database(file, client)
    return client(tracking_uri=tracking_uri)


def create_database(file: Path, client: Callable[..., Any]) -> None:
    """Make a database with MLflow's tables; one whose creation was cut short would refuse everybody for ever."""
    with whole(file, replace=False) as draft:  # another run may be faster
        client(tracking_uri=f"sqlite:///{draft.as_posix()}").search_experiments(max_results=1)


def _latest_steps(run: Any) -> dict[str, int]:
    return {metric.key: metric.step for metric in run.data.to_proto().metrics}


def error_code(error: Exception) -> str | None:
    """Get MLflow's code of an error, None for an error that is not MLflow's."""
    return getattr(error, "error_code", None)


def refusal(error: Exception) -> bool | None:
    """Tell whether MLflow refuses a request as invalid: True for certain, False as it seems, None if it may take it later.

    An unknown run, model or experiment is refused for certain.
    """
    if error_code(error) in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
        return True
    # MLflow reports errors of its database as BAD_REQUEST too, and a proxy's 413 as an internal error.
    status = re.search(r"failed with error code (4\d\d)", str(error))
    if error_code(error) == "BAD_REQUEST" or (status and status[1] not in ("401", "403", "404", "408", "429")):
        return False
    return None


def is_lasting(error: Exception) -> bool:
    """Tell whether an artifact can never be sent: it is gone, the folder is closed, or a package is missing."""
    lasting = (FileNotFoundError, PermissionError, NotADirectoryError, ImportError)
    return isinstance(error, lasting) or refusal(error) is not None


def first_line(error: Exception, uri: str = "") -> str:
    """Describe an error in one line, its type and the first line of its message, without the credentials of a URI."""
    line = (str(error).splitlines() or [""])[0]
    return cut(f"{type(error).__name__}: {hidden(line, uri)}", 300)


def cause(error: Exception, uri: str = "") -> str:
    """Find what the system said of a failed request, such as ``connection refused``; else the error's first line."""
    reason, link = "", error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            reason = link.strerror.lower()
        link = link.__cause__ or link.__context__
    return reason or first_line(error, uri)


def cut(value: Any, length: int) -> str:
    """Give the text of a value, with ``...`` at its end where it is too long."""
    text = str(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"
