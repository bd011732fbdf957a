"""Run a grid, or seeds. Each run is complete in itself; finished runs are skipped, the others are continued."""

import shlex
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pandas as pd
from filelock import FileLock, Timeout
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import whole
from fedlit.experiment.grid import PlannedRun, Sweep, load_sweep, plan
from fedlit.experiment.jobs import Job, run_jobs
from fedlit.experiment.mistakes import near
from fedlit.experiment.sweep_progress import SweepProgress
from fedlit.tracking.lock import refuse_held
from fedlit.tracking.mlflow import noted_opening
from fedlit.tracking.run import Result

__all__ = ["Sweep", "alone", "draws_of", "load_sweep", "next_steps", "plan", "run_all", "run_sweep"]

Status = Literal["finished", "failed", "stopped", "waiting"]

STOPPED = {sign * (base + s) for s in (signal.SIGINT, signal.SIGTERM) for sign, base in ((1, 128), (-1, 0))}
"""Exit codes of a run that a signal ended."""


def run_sweep(sweep: Sweep, jobs: int = 1, console: Console | None = None) -> pd.DataFrame:
    """Run what is not finished, ``jobs`` runs side by side. Write and return the table of :func:`run_all`.

    Raises:
        ConfigError: There is a mistake in a run. Nothing has been started.
        CheckpointError: A run of this name has another configuration. Nothing has been started.
    """
    console = console or Console(highlight=False, markup=False, soft_wrap=True)
    runs = plan(sweep)
    table = run_all(runs, sweep.table, sweep.metric, jobs, console)
    if finished := [run for run, status in zip(runs, table["status"], strict=True) if status == "finished"]:
        metrics = Result.read(finished[0].directory).metrics
        if sweep.metric not in metrics and table[sweep.metric].isna().all():
            console.print(f"metric: no run has {sweep.metric!r}{near(sweep.metric, metrics)}", style="yellow")
    return table


def run_all(runs: Sequence[PlannedRun], file: Path, metric: str, jobs: int, console: Console) -> pd.DataFrame:
    """Run what is not finished. Write and return one row for each run.

    A signal ends the runs at a checkpoint, and then this process by ``SystemExit``.

    Args:
        runs: Runs in their order.
        file: File of the table, in the folder of the runs. Whoever writes it is alone at work on these runs.
        metric: A test metric, or another one whose last value is in ``metrics.csv``.
        jobs: Number of runs side by side.
        console: Console to print to.

    Returns:
        The columns are name, case, one for each key of the grid, seed, data_seed, status (``finished``, ``failed``, ``stopped`` or
        ``waiting``), the metric, best_round, and directory.

    Raises:
        ConfigError: There are no jobs, or another process runs these. Nothing has been started.
        CheckpointError: A run of this name has another configuration. Nothing has been started.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, found {jobs}")
    with alone(file):
        for run in runs:
            refuse_held(run.directory)
        standings = {run.name: run.standing() for run in runs}
        statuses: dict[str, Status] = {n: "finished" if s == "finished" else "waiting" for n, s in standings.items()}
        todo = {run.name: run for run in runs if standings[run.name] != "finished"}
        console.print(f"{len(runs)} runs, {len(runs) - len(todo)} finished before: {file.parent}")
        progress = SweepProgress(len(runs), len(runs) - len(todo), jobs, console)

        def started(job: Job) -> None:
            todo[job.name].prepare()
            progress.started(job.name, job.log)

        def ended(job: Job, code: int, signalled: bool) -> None:
            run = todo[job.name]
            run.tidy()
            statuses[run.name] = status = _status(run, code, signalled)
            if status == "finished":
                progress.ended(run.name, f"{metric} {run.metric(metric):.4f}")
            elif signalled:
                progress.stopped(run.name)
            else:
                progress.ended(run.name, f"{status} (exit code {code})")
            if status == "failed":
                console.print(f"the end of {job.log}:\n{_last_lines(job.log)}", style="red")
            _write(_table(runs, metric, statuses), file)

        with progress:
            signum = run_jobs([run.job() for run in todo.values()], jobs, started, ended, progress.tick)
        table = _table(runs, metric, statuses)
        _write(table, file)
        for line in _own_images(table, metric):
            console.print(line, style="yellow")
    if signum:
        console.print("stopped by a signal; to continue, the same command again")
        raise SystemExit(128 + signum)
    return table


def next_steps(table: pd.DataFrame, file: Path) -> str:
    """Say where the table of :func:`run_all` is, and which commands compare the runs and open MLflow on them."""
    lines = [f"a row a run: {file}"]
    finished = table.loc[table["status"] == "finished", "directory"]
    if len(finished):
        lines += [f"to compare: fedlit compare {shlex.quote(str(file.parent))}"]
        lines += filter(None, [noted_opening(Path(finished.iloc[0]))])
    return "\n".join(lines)


def _table(runs: Sequence[PlannedRun], metric: str, statuses: Mapping[str, Status]) -> pd.DataFrame:
    rows = []
    for run in runs:
        result = Result.read(run.directory) if statuses[run.name] == "finished" else None
        row = {
            "name": run.name,
            "case": run.case,
            **run.point,
            "seed": run.seed,
            "data_seed": run.data_seed,
            "status": statuses[run.name],
        }
        row[metric] = run.metric(metric) if result else float("nan")
        rows.append(row | {"best_round": result.best_round if result else None, "directory": str(run.directory)})
    return pd.DataFrame(rows).astype({"best_round": "Int64", "data_seed": "Int64"})


def draws_of(table: pd.DataFrame) -> str:
    """Return which draws of the data the seeds of a table have."""
    return "each with its own draw of the data" if table["data_seed"].nunique() > 1 else "on one draw of the data"


def _own_images(table: pd.DataFrame, metric: str) -> list[str]:
    """Return a line for each run of personal heads, whose mean is of other images than the metric of the table."""
    own, images = (metric.replace("auroc_macro", word) for word in ("auroc_own_macro", "auroc_images"))
    lacking = table[table[metric].isna() & (table["status"] == "finished")]
    results = [(run.name, Result.read(Path(run.directory)).metrics) for run in lacking.itertuples()]
    return [
        f"{name}: no {metric}, because personal heads rank fewer images: {own} is {found[own]:.4f}, of {found[images]:,.0f} "
        "images a class; `fedlit compare` ranks the same images of all runs"
        for name, found in results
        if own != metric and {own, images} <= found.keys()
    ]


def _write(table: pd.DataFrame, file: Path) -> None:
    with whole(file) as draft:
        table.to_csv(draft, index=False)


def _status(run: PlannedRun, code: int, signalled: bool) -> Status:
    if code == 0 and Result.read(run.directory):
        return "finished"
    return "stopped" if signalled or code in STOPPED else "failed"  # a signal may come before a run can answer it


def _last_lines(log: Path, count: int = 15) -> str:
    if not log.exists():
        return "  its process died before it could write"
    with log.open(errors="replace") as file:
        return "".join(f"  {line}" for line in deque(file, maxlen=count)).rstrip()


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Keep others from the runs of a table; the system forgets it when the process dies.

    Raises:
        ConfigError: Another process is at work.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(file.with_name(f".{file.stem}.lock")).acquire(blocking=False)
    except Timeout as error:
        raise ConfigError(f"another process is at work on the runs of {file}; wait for it, or stop it") from error
    with lock:
        yield
