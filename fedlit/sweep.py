"""Runs a grid, or seeds: each run complete in itself; what is finished is skipped, the rest goes on."""

import fcntl
import os
import re
import shlex
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.console import Console
from rich.table import Table

from fedlit.errors import ConfigError
from fedlit.grid import PlannedRun, Sweep, load_sweep, plan
from fedlit.jobs import Job, run_jobs
from fedlit.mistakes import near
from fedlit.progress import SweepProgress
from fedlit.run import Result
from fedlit.tracking.mlflow import noted_opening

__all__ = ["Sweep", "alone", "load_sweep", "next_steps", "plan", "run_all", "run_sweep", "seeds_table", "summary"]

Status = Literal["finished", "failed", "stopped", "waiting"]

STOPPED = {sign * (base + s) for s in (signal.SIGINT, signal.SIGTERM) for sign, base in ((1, 128), (-1, 0))}
"""Exit codes of a run that a signal ended."""


def run_sweep(sweep: Sweep, jobs: int = 1, console: Console | None = None) -> pd.DataFrame:
    """Run what is not finished; write and return one row a run, as in ``sweep.csv``.

    Args:
        sweep: what to run.
        jobs: runs side by side.
        console: to print to; standard output by default.

    Returns:
        As of :func:`run_all`.

    Raises:
        ConfigError: a mistake in any run; nothing has been started.
        CheckpointError: a run of this name has another configuration; nothing has been started.
    """
    console = console or Console(highlight=False, markup=False, soft_wrap=True)
    runs = plan(sweep)
    table = run_all(runs, sweep.table, sweep.metric, jobs, console)
    if finished := [run for run, status in zip(runs, table["status"], strict=True) if status == "finished"]:
        known = Result.read(finished[0].directory).metrics
        if sweep.metric not in known and table[sweep.metric].isna().all():
            console.print(f"metric: no run has {sweep.metric!r}{near(sweep.metric, known)}", style="yellow")
    return table


def run_all(runs: Sequence[PlannedRun], file: Path, metric: str, jobs: int, console: Console) -> pd.DataFrame:
    """Run what is not finished; write and return one row a run.

    A signal ends the runs at a checkpoint, and then this process by ``SystemExit``.

    Args:
        runs: in order.
        file: of the table, in the folder of the runs; whoever writes it is alone at work on these runs.
        metric: a test metric, or another whose last value is in ``metrics.csv``.
        jobs: runs side by side.
        console: to print to.

    Returns:
        name, case, a column for each key of the grid, seed, status (``finished``, ``failed``, ``stopped`` or
        ``waiting``), a column of the metric, best_round, directory.

    Raises:
        ConfigError: no jobs, or another process runs these; nothing has been started.
        CheckpointError: a run of this name has another configuration; nothing has been started.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, found {jobs}")
    with alone(file):
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
    if signum:
        console.print("stopped by a signal; to continue, the same command again")
        raise SystemExit(128 + signum)
    return table


def summary(sweep: Sweep, table: pd.DataFrame) -> Table:
    """Mean and standard deviation of the metric over the seeds, by case and point of the grid."""
    by = [*(["case"] if sweep.cases else []), *sweep.grid]
    shown = Table(title=f"{sweep.metric}, mean over seeds", title_justify="left")
    for name in by:
        shown.add_column(name)
    for name in ("mean", "standard deviation", "runs"):
        shown.add_column(name, justify="right")
    groups = table.groupby(by, sort=False, dropna=False) if by else [((), table)]
    for point, rows in groups:
        values = rows[sweep.metric].dropna()
        numbers = (values.mean(), values.std())
        texts = (f"{number:.4f}" if number == number else "-" for number in numbers)
        shown.add_row(*map(str, point), *texts, f"{len(values)}/{len(rows)}")
    return shown


def next_steps(table: pd.DataFrame, file: Path) -> str:
    """Where the runs' table is, and the commands that compare the runs and open MLflow on them.

    Args:
        table: of :func:`run_all`.
        file: it was written to.
    """
    lines = [f"a row a run: {file}"]
    finished = table.loc[table["status"] == "finished", "directory"]
    if len(finished):
        lines += [f"to compare: fedlit compare {shlex.quote(str(file.parent))}"]
        lines += filter(None, [noted_opening(Path(finished.iloc[0]))])
    return "\n".join(lines)


def seeds_table(results: Sequence[Result]) -> Table:
    """Mean and standard deviation over seeds of each test set's AUROC, by class too where there is one set alone."""
    keys = [key for key in results[0].metrics if re.fullmatch(r"test/[^/]+/auroc(_.*|/.*)", key)]
    macro = [key for key in keys if key.endswith("/auroc_macro")]
    shown = Table(title=f"over {len(results)} seeds", title_justify="left")
    shown.add_column("metric")
    for name in ("mean", "standard deviation"):
        shown.add_column(name, justify="right")
    for key in keys if len(macro) == 1 else macro:
        values = pd.Series([result.metrics[key] for result in results])
        shown.add_row(key, *(f"{number:.4f}" if number == number else "-" for number in (values.mean(), values.std())))
    return shown


def _table(runs: Sequence[PlannedRun], metric: str, statuses: Mapping[str, Status]) -> pd.DataFrame:
    rows = []
    for run in runs:
        result = Result.read(run.directory) if statuses[run.name] == "finished" else None
        row = {"name": run.name, "case": run.case, **run.point, "seed": run.seed, "status": statuses[run.name]}
        row[metric] = run.metric(metric) if result else float("nan")
        rows.append(row | {"best_round": result.best_round if result else None, "directory": str(run.directory)})
    return pd.DataFrame(rows).astype({"best_round": "Int64"})


def _write(table: pd.DataFrame, file: Path) -> None:
    temporary = file.with_name(f".{file.name}")
    table.to_csv(temporary, index=False)
    os.replace(temporary, file)


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
        ConfigError: another process is at work.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f".{file.stem}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process is at work on the runs of {file}; wait for it, or stop it") from error
        yield
