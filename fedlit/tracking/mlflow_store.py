"""The requests to MLflow that the tracker makes: the only module that knows MLflow's client."""

import getpass
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from fedlit.tracking.base import RunInfo, RunStatus

logger = logging.getLogger(__name__)

TAG_LENGTH = 5000  # of a value, in MLflow 2.16; later versions take more
SERVERS = ("http://", "https://", "databricks", "uc:")

EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Opens the experiment in MLflow's pages for model training, not in those for language models."""


_IMPORTING = threading.Lock()


class Point(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    step: int
    time_ms: int


class MLflowStore:
    """One run in MLflow. Its methods are plain requests: each raises if it fails, and may be repeated."""

    def __init__(self, tracking_uri: str, artifact_location: str | None, run: RunInfo):
        self.uri = tracking_uri
        self.run = run
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self.started_ms = int(time.time() * 1000)
        self.latest: dict[str, int] = {}  # key to last step, of a run that is continued
        self.params: dict[str, str] = {}
        self._client: Any = None
        self._may_continue = run.resumed
        self._asked_for_run = False
        # Resolved now: the thread may come to it after somebody changed the working directory.
        self._absolute_uri = _absolute(tracking_uri)
        self._artifact_location = artifact_location
        if artifact_location is None and not tracking_uri.startswith(("http://", "https://", "databricks", "uc:")):
            self._artifact_location = "mlartifacts"
        if self._artifact_location is not None and "://" not in self._artifact_location:
            self._artifact_location = Path(self._artifact_location).absolute().as_uri()

    def open(self) -> None:
        """Connect, find or create the experiment, continue or create the run, and note its id."""
        if self._client is None:
            self._client = _connect(self._absolute_uri)
        if self._may_continue:
            self._continue_run()
            self._may_continue = False
        if self.run_id is None:
            self._create_run()
        self._write_id()

    def is_active(self) -> bool:
        try:
            return self._client.get_run(self.run_id).info.lifecycle_stage == "active"
        except Exception as error:
            if _code(error) == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def steps(self, key: str) -> set[int]:
        return {metric.step for metric in self._client.get_metric_history(self.run_id, key)}

    def lacking(self, points: Sequence[Point], known: dict[str, set[int]]) -> list[Point]:
        """Those of the points whose key and step the run does not have yet.

        Args:
            points: What was sent, with an unknown outcome.
            known: Filled with the steps of each key; after a request that failed, a call goes on from there.
        """
        first = {point.key: point.step for point in reversed(points)}
        if first.keys() - known.keys():
            latest = _latest_steps(self._client.get_run(self.run_id))
            for key in first.keys() - known.keys():
                # The last step says enough of a key that got no later one: a request less for each key.
                known[key] = self.steps(key) if first[key] < latest.get(key, -1) else {latest.get(key, -1)}
        return [point for point in points if point.step not in known[point.key]]

    def log_metrics(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(point.key, point.value, point.time_ms, point.step) for point in points]
        self._client.log_batch(self.run_id, metrics=metrics, synchronous=True)

    def log_params(self, params: Sequence[tuple[str, str]]) -> None:
        from mlflow.entities import Param

        self._client.log_batch(self.run_id, params=[Param(key, value) for key, value in params], synchronous=True)

    def log_tags(self, tags: Sequence[tuple[str, str]]) -> None:
        from mlflow.entities import RunTag

        entities = [RunTag(key, cut(value, TAG_LENGTH)) for key, value in tags]
        self._client.log_batch(self.run_id, tags=entities, synchronous=True)

    def log_artifact(self, path: Path, folder: str) -> None:
        if not path.exists():
            raise FileNotFoundError(f"{path} is no longer there")
        self._client.log_artifact(self.run_id, str(path), folder or None)
        if (path / "MLmodel").is_file():
            self._list_model(path)

    def terminate(self, status: RunStatus) -> None:
        self._client.set_terminated(self.run_id, status)

    def _list_model(self, folder: Path) -> None:
        """Have MLflow's pages show the artifact as a model, with its signature, and offer to register it."""
        described = yaml.safe_load((folder / "MLmodel").read_text())
        listed = {key: described[key] for key in ("flavors", "utc_time_created", "model_uuid") if key in described}
        listed |= {"run_id": self.run_id, "artifact_path": folder.name}
        self.log_tags([("mlflow.log-model.history", json.dumps([listed]))])

    def _continue_run(self) -> None:
        run_id = self._read_id()
        if run_id is None:
            return
        try:
            found = self._client.get_run(run_id)
        except Exception as error:
            if _code(error) != "RESOURCE_DOES_NOT_EXIST":
                raise
            found = None
        if found is None or found.info.lifecycle_stage != "active":
            logger.warning("The MLflow run %s is gone; a new one gets all metrics of the run.", run_id)
            return
        self._client.update_run(run_id, status="RUNNING")
        self.latest = _latest_steps(found)
        self.params = dict(found.data.params)
        self.experiment_id = found.info.experiment_id
        self.run_id = run_id

    def _create_run(self) -> None:
        if self.experiment_id is None:
            self.experiment_id = self._find_or_create_experiment()
        # A request whose answer was lost may have created the run: its start time tells it from all others.
        found: Iterable[Any] = ()
        if self._asked_for_run:
            found = self._client.search_runs(
                [self.experiment_id], filter_string=f"attributes.start_time = {self.started_ms}"
            )
        mine = [candidate for candidate in found if candidate.info.run_name == self.run.name]
        self._asked_for_run = True
        tags = {"mlflow.user": _user()}
        self.run_id = (
            mine[0]
            if mine
            else self._client.create_run(
                self.experiment_id, start_time=self.started_ms, run_name=self.run.name, tags=tags
            )
        ).info.run_id

    def _find_or_create_experiment(self) -> str:
        name = self.run.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self._client.create_experiment(
                    name, artifact_location=self._artifact_location, tags=EXPERIMENT_TAGS
                )
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
            return noted["run_id"] if noted["tracking_uri"] == without_password(self.uri) else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s/mlflow_run.json cannot be read (%s); a new MLflow run.", self.run.directory, error)
            return None

    def _write_id(self) -> None:
        path = self.run.directory / "mlflow_run.json"
        noted = {"run_id": self.run_id, "tracking_uri": without_password(self.uri)}
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        self.run.directory.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(noted, indent=2) + "\n")
        os.replace(partial, path)


def import_mlflow() -> ModuleType:
    """MLflow and the parts of it that fedlit uses. The first import takes seconds.

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


def _connect(tracking_uri: str) -> Any:
    """An MlflowClient. The tables of a new database take seconds."""
    client = import_mlflow().MlflowClient
    # Its creation of a database, line by line, would run through the progress display; errors are told here.
    for name, level in (("alembic", logging.WARNING), ("mlflow.store.db.utils", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
    if tracking_uri.startswith("sqlite:////"):
        file = Path(tracking_uri.removeprefix("sqlite:///").partition("?")[0])
        if not file.exists():
            _create_database(file, client)
    return client(tracking_uri=tracking_uri)


def _create_database(file: Path, connect: Callable[..., Any]) -> None:
    """A database with MLflow's tables, whole or not at all: one whose creation was cut short refuses everybody for ever."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        connect(tracking_uri=f"sqlite:///{draft.as_posix()}").search_experiments(max_results=1)
        try:
            os.link(draft, file)
        except FileExistsError:
            return  # another run was faster
        except OSError:  # a file system without links
            os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _latest_steps(run: Any) -> dict[str, int]:
    return {metric.key: metric.step for metric in run.data.to_proto().metrics}


def _code(error: Exception) -> str | None:
    """MLflow's error code, None for an error that is not MLflow's."""
    return getattr(error, "error_code", None)


def refusal(error: Exception) -> bool | None:
    """True: the request is invalid for certain. False: it seems so. None: the store may take it later."""
    if _code(error) in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
        return True
    # MLflow reports errors of its database as BAD_REQUEST too, and a proxy's 413 as an internal error.
    status = re.search(r"failed with error code (4\d\d)", str(error))
    if _code(error) == "BAD_REQUEST" or (status and status[1] not in ("401", "403", "404", "408", "429")):
        return False
    return None


def is_lasting(error: Exception) -> bool:
    """Whether an artifact can never be sent: it is gone, the folder is closed, or a package is missing."""
    lasting = (FileNotFoundError, PermissionError, NotADirectoryError, ImportError)
    return isinstance(error, lasting) or refusal(error) is not None


def first_line(error: Exception) -> str:
    line = (str(error).splitlines() or [""])[0]
    return cut(f"{type(error).__name__}: {line}", 300)


def cause(error: Exception) -> str:
    """What the system said of a request that failed, such as ``connection refused``; else the error's first line."""
    said, link = "", error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            said = link.strerror.lower()
        link = link.__cause__ or link.__context__
    return said or first_line(error)


def absent(uri: str) -> str:
    """``there is no file ...`` of a SQLite URI whose file is not there; "" otherwise."""
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if not uri.startswith("sqlite:///") or file.is_file():
        return ""
    return f"there is no file {file}" + ("" if file.is_absolute() else f" in {Path.cwd()}")


def cut(value: Any, length: int) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def without_password(uri: str) -> str:
    return re.sub(r"(?<=://)[^/@]*@", "", uri)


def _absolute(uri: str) -> str:
    """A SQLite URI with the absolute path of its file; any other URI as it is."""
    path = uri.removeprefix("sqlite:///")
    if path == uri or path.startswith(("/", ":memory:", "file:")):
        return uri
    return f"sqlite:///{Path(path).absolute().as_posix()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"
