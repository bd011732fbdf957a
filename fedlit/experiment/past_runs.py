"""Runs on disk: their state, a metric, their size, and their removal, also from MLflow."""

import shutil
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.experiment.rule import VALIDATION
from fedlit.tracking.addresses import absent, without_credentials
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.journal import FILE
from fedlit.tracking.lock import RunLock, is_held
from fedlit.tracking.mlflow import prepare
from fedlit.tracking.names import IS_PARENT, TEST, better
from fedlit.tracking.run import PHASES, Result, last_checkpoint, metric_of, read_config
from fedlit.tracking.store import PARENT_ID, cause, connect, error_code, noted_run


@dataclass(frozen=True)
class RunState:
    """A run on disk."""

    directory: Path  # The run's directory.
    status: str  # `running`, `finished`, `unfinished`, or `no checkpoint` if it cannot be resumed.
    rounds: int  # Number of completed rounds in its newest checkpoint.
    metric: str  # The metric by which it is ranked, or else the one that selects its best model.
    value: float  # The metric of its best model; before the end, the newest value. NaN if it has none.
    size: int  # Bytes of its files; a file with several names counts once.
    started: float  # Time at which its configuration was written, in seconds.


def monitored(federation: Mapping[str, Any], logged: Container[str]) -> tuple[str, str | None]:
    """Return the metric that selects a run's best model, and its direction, as the federation resolves ``auto``."""
    metric, mode = (str(federation.get(key, "auto")) for key in ("monitor", "monitor_mode"))
    if metric == "auto":
        metric = VALIDATION if VALIDATION in logged else "val/loss"
    return metric, better(metric) if mode == "auto" else mode


def list_runs(folders: Sequence[Path], metric: str | None = None) -> list[RunState]:
    """Return the runs in folders, ranked by a metric with the best first, or by name with what each run monitors.

    The folders are run directories, folders of an experiment, or folders of experiments.

    Raises:
        ConfigError: A folder does not exist or has no run, the metric is not one to rank by, or no run has it.
    """
    directories = list(dict.fromkeys(run for folder in folders for run in _runs_in(folder)))
    logged = {run: {key for _, key, _ in MetricsFile(run / "metrics.csv").rows()} for run in directories}
    monitors = {run: monitored(read_config(run).get("federation") or {}, logged[run]) for run in directories}
    if metric is None:
        return [_state(run, monitors[run][0]) for run in directories]
    best = _direction(metric, [mode for name, mode in monitors.values() if name == metric])
    runs = [_state(run, metric) for run in directories]
    if all(run.value != run.value for run in runs):
        raise ConfigError(f"--by: no run has {metric}{near(metric, set().union(*logged.values()))}")
    sign = -1 if best == "max" else 1
    return sorted(runs, key=lambda run: (run.value != run.value, sign * run.value if run.value == run.value else 0.0))


def _direction(metric: str, modes: Sequence[str | None]) -> str:
    """Return the direction of a metric by which runs are ranked, given those of the runs that it selects the best of.

    Raises:
        ConfigError: It is a metric of a test set, or it has no direction, or two.
    """
    if metric.startswith(TEST):
        raise ConfigError(
            f"--by: expected a metric of the validation data such as {VALIDATION}, found {metric} of a test set; a "
            "choice by the test set would make its AUROC too high; `fedlit compare` shows the test AUROC"
        )
    directions = {*modes} or {better(metric)}
    if len(directions) > 1:
        raise ConfigError(f"--by: expected one direction of {metric}, found runs that maximise and that minimise it")
    if (direction := directions.pop()) is None:
        raise ConfigError(
            f"--by: expected an AUROC, a loss, or the federation.monitor of a run, found {metric}, whose direction is "
            "not known"
        )
    return direction


def noted_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs in folders with notes for MLflow, each before its phases.

    Raises:
        ConfigError: A folder does not exist or has no run.
    """
    runs = [run for folder in folders for run in _runs_in(folder)]
    whole = [each for run in dict.fromkeys(runs) for each in (run, *sorted(run.glob(f"{PHASES}/*")))]
    return [run for run in whole if (run / FILE).exists()]


def _runs_in(folder: Path) -> list[Path]:
    if (folder / "config.yaml").is_file():
        return [folder]
    runs = sorted(file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/config.yaml"))
    if not runs:
        found = "a folder without runs" if folder.is_dir() else "nothing"
        raise ConfigError(f"{folder}: expected run directories (runs/EXPERIMENT/RUN), found {found}; name another")
    return runs


def _state(run: Path, metric: str) -> RunState:
    last = last_checkpoint(run)
    if is_held(run):
        status = "running"
    elif Result.read(run) is not None:
        status = "finished"
    else:
        status = "unfinished" if last else "no checkpoint"
    files = {(s.st_dev, s.st_ino): s.st_size for s in (p.stat() for p in run.rglob("*") if p.is_file())}
    rounds = checkpoint.rounds(last) if last else 0
    started = (run / "config.yaml").stat().st_mtime
    return RunState(
        run, status, rounds, metric, value=metric_of(run, metric), size=sum(files.values()), started=started
    )


def removable(runs: Sequence[Path]) -> list[RunState]:
    """Return the runs that a user wants to remove.

    Raises:
        ConfigError: A path is not a run directory, or a process is using the run; none has been removed.
    """
    for run in runs:
        if not (run / "config.yaml").is_file():
            raise ConfigError(f"{run}: expected a run directory (runs/EXPERIMENT/RUN), found no config.yaml in it")
    states = [_state(run, VALIDATION) for run in dict.fromkeys(runs)]
    if running := [state for state in states if state.status == "running"]:
        raise ConfigError(f"{running[0].directory}: this run is running; stop it or wait for its end, then repeat")
    return states


def remove_run(run: Path, tracking_uri: str | None = None) -> str:
    """Remove a run's directory and its MLflow run with its artifacts; return a line on what was removed.

    ``tracking_uri`` is MLflow's store, if its address has credentials, which the run's directory does not keep.

    Raises:
        ConfigError: A process is using the run, or MLflow cannot be reached; the directory is kept.
    """
    lock = RunLock(run)
    lock.acquire()
    try:
        for each in (*sorted(run.glob(f"{PHASES}/*")), run):
            done = remove_from_mlflow(each, tracking_uri)
        shutil.rmtree(run)
    except OSError as error:
        raise ConfigError(f"{run}: cannot be removed: {error.strerror or error}") from error
    finally:
        lock.release()
    return f"removed {run}{done}"


OTHERWISE = "repeat the command when it answers, name the store with --tracking_uri, or delete the folder by hand"


def remove_from_mlflow(directory: Path, tracking_uri: str | None = None) -> str:
    """Delete the MLflow run of a run directory, and its artifacts if they are on this machine.

    MLflow keeps deleted runs in its database until ``mlflow gc``. A parent run without other runs is deleted as well.

    Returns:
        The end of a sentence on what was deleted; "" if the run has no MLflow run.

    Raises:
        ConfigError: MLflow is not installed or cannot be reached.
    """
    if (noted := noted_run(directory)) is None:
        return ""
    uri, run_id = tracking_uri or noted[0], noted[1]
    if not prepare():
        raise ConfigError(f"{directory}: its MLflow run needs the package mlflow; install it, or delete the folder")
    if missing := absent(uri):
        raise ConfigError(f"{directory}: MLflow at {without_credentials(uri)}: {missing}; {OTHERWISE}")
    try:
        return _delete(connect(uri), run_id)
    except Exception as error:
        if error_code(error) == "RESOURCE_DOES_NOT_EXIST":
            return "; MLflow no longer had it"
        reason = f"MLflow at {without_credentials(uri)}: {cause(error, uri)}"
        raise ConfigError(f"{directory}: {reason}; {OTHERWISE}") from error


def _delete(client: Any, run_id: str) -> str:
    run = client.get_run(run_id)
    if run.info.lifecycle_stage == "active":
        client.delete_run(run_id)
    place = urlparse(run.info.artifact_uri)
    if local := place.scheme == "file":
        shutil.rmtree(Path(url2pathname(place.path)), ignore_errors=True)
    parent = run.data.tags.get(PARENT_ID)
    if parent is not None and IS_PARENT in client.get_run(parent).data.tags:
        siblings = f"tags.`{PARENT_ID}` = '{parent}'"
        if not client.search_runs([run.info.experiment_id], filter_string=siblings, max_results=1):
            client.delete_run(parent)
    return " and its run in MLflow" + (" with its artifacts" if local else ", whose artifacts `mlflow gc` removes")
