"""Runs on disk: their state, a metric, their size, and their removal."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.experiment.rule import VALIDATION
from fedlit.metrics.direction import better
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.journal import FILE
from fedlit.tracking.lock import RunLock, is_held
from fedlit.tracking.names import TEST
from fedlit.tracking.removal import remove_from_mlflow
from fedlit.tracking.run import PHASES, Result, last_checkpoint, metric_of


@dataclass(frozen=True)
class RunState:
    """A run on disk."""

    directory: Path  # The run's directory.
    status: str  # `running`, `finished`, `unfinished`, or `no checkpoint` if it cannot be resumed.
    rounds: int  # Number of completed rounds in its newest checkpoint.
    value: float  # The metric of its best model; before the end, the newest value. NaN if it has none.
    size: int  # Bytes of its files; a file with several names counts once.
    started: float  # Time at which its configuration was written, in seconds.


def check_ranking(metric: str) -> None:
    """Check that runs may be ranked by a metric.

    Raises:
        ConfigError: It is a metric of a test set, or it has no direction.
    """
    if metric.startswith(TEST):
        raise ConfigError(
            f"--by: expected a metric of the validation data such as {VALIDATION}, found {metric} of a test set; a "
            "choice by the test set would make its AUROC too high; `fedlit compare` shows the test AUROC"
        )
    if better(metric) is None:
        raise ConfigError(f"--by: expected an AUROC or a loss, found {metric}; only their direction is known")


def list_runs(folders: Sequence[Path], metric: str | None = None) -> list[RunState]:
    """Return the runs in folders, ranked by a metric with the best first, or by name with the mean validation AUROC.

    The folders are run directories, folders of an experiment, or folders of experiments.

    Raises:
        ConfigError: A folder does not exist or has no run, the metric is not one to rank by, or no run has it.
    """
    if metric is not None:
        check_ranking(metric)
    directories = list(dict.fromkeys(run for folder in folders for run in _runs_in(folder)))
    runs = [_state(run, metric or VALIDATION) for run in directories]
    if metric is None:
        return runs
    if all(run.value != run.value for run in runs):
        logged = {key for run in directories for _, key, _ in MetricsFile(run / "metrics.csv").rows()}
        raise ConfigError(f"--by: no run has {metric}{near(metric, logged)}")
    sign = -1 if better(metric) == "max" else 1
    return sorted(runs, key=lambda run: (run.value != run.value, sign * run.value if run.value == run.value else 0.0))


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
    return RunState(run, status, rounds, metric_of(run, metric), sum(files.values()), started)


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
