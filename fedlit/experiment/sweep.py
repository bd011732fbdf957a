"""The execution of the runs of a plan: finished runs are skipped, unfinished ones continued."""

import shlex
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedlit.core.errors import ConfigError
from fedlit.core.ranges import AT_LEAST_ONE
from fedlit.core.system.files import whole
from fedlit.core.system.processes import ENDING
from fedlit.experiment.cluster.submission import Slurm
from fedlit.experiment.grid import plan
from fedlit.experiment.jobs import CommandLine, run_jobs
from fedlit.experiment.mistakes import near
from fedlit.experiment.plan import Plan, load_plan
from fedlit.experiment.planned_run import PlannedRun
from fedlit.tracking.base import RunGroup, Tracker
from fedlit.tracking.lock import refuse_held
from fedlit.tracking.mlflow import noted_opening
from fedlit.tracking.run import PHASES, Result, metric_of

__all__ = ["draws_of", "load_sweep", "locked", "log_groups", "next_steps", "plan", "run_all", "run_starts", "run_sweep"]

Status = Literal["finished", "failed", "stopped", "waiting"]

STOPPED = {sign * (base + s) for s in ENDING for sign, base in ((1, 128), (-1, 0))}
"""Exit codes of runs that a signal stopped."""


def load_sweep(path: str | Path) -> Plan:
    """Read a sweep's YAML.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value has another type; names the place.
    """
    return load_plan(path, "sweep")


def run_sweep(sweep: Plan, jobs: int | Slurm = 1, console: Console | None = None) -> pd.DataFrame:
    """Run the unfinished runs of a sweep, ``jobs`` at a time; write and return the table of :func:`run_all`.

    Raises:
        ConfigError: A run has a mistake; no run has been started.
        CheckpointError: A run of the same name has another configuration; no run has been started.
    """
    console = console or Console(highlight=False, markup=False, soft_wrap=True)
    with console.status(f"checking the settings of {sweep.experiment}"):
        runs = plan(sweep)
    run_starts(sweep, jobs, console)
    table = run_all(runs, sweep.table, sweep.metric, jobs, console)
    if len(sweep.seeds) > 1:
        groups = defaultdict(list)
        for run in runs:
            groups[run.group or sweep.experiment].append(run)
        log_groups(groups)
    if finished := [run for run, status in zip(runs, table["status"], strict=True) if status == "finished"]:
        metrics = Result.read(finished[0].directory).metrics
        if sweep.metric not in metrics and table[sweep.metric].isna().all():
            console.print(f"metric: no run has {sweep.metric!r}{near(sweep.metric, metrics)}", style="yellow")
    return table


def run_starts(planned: Plan, jobs: int | Slurm, console: Console) -> None:
    """Train the models from whose weights the runs of a plan start.

    Raises:
        ConfigError: One of them has not finished; its table has been printed.
    """
    if planned.bodies is None:
        return
    table = run_sweep(planned.bodies, jobs, console)
    missing = table[table["status"] != "finished"]
    if len(missing):
        raise ConfigError(
            f"starts: {len(missing)} runs of {planned.bodies.directory} are not finished: {', '.join(missing['name'])};"
            " repeat the command to continue"
        )


def run_all(
    runs: Sequence[PlannedRun],
    file: Path,
    metric: str,
    jobs: int | Slurm,
    console: Console,
    tried: Collection[str] = (),
    above: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Run the unfinished runs, ``jobs`` at a time; write a table with one row per run to a file, and return it.

    With a cluster in place of a number they become its jobs, which the error :class:`Submitted` says.

    A signal stops the runs at a checkpoint, and then this process by ``SystemExit``. A lock next to the file excludes
    other processes. Runs whose names are among ``tried`` are not run again if they have failed. The file begins with
    the rows of ``above``. The columns are name, stage (in a tuning), case, labels, one per key of the grid, seed,
    data_seed, status (``finished``, ``failed``, ``stopped`` or ``waiting``), the metric, best_round, and directory.

    Raises:
        ConfigError: ``jobs`` is below 1, or another process is running them; no run has been started.
        CheckpointError: A run of the same name has another configuration; no run has been started.
    """
    cluster, at_once = (jobs, 1) if isinstance(jobs, Slurm) else (None, jobs)
    AT_LEAST_ONE.check("--jobs", at_once)
    with locked(file):
        if cluster is not None:
            tried = {*tried, *cluster.tried(file)}
        for run in runs:
            refuse_held(run.directory)
        standings = {run.name: run.standing() for run in runs}
        statuses: dict[str, Status] = {n: "failed" if n in tried else "waiting" for n in standings}
        statuses |= {name: "finished" for name, standing in standings.items() if standing == "finished"}
        todo = {run.name: run for run in runs if statuses[run.name] == "waiting"}
        finished = list(statuses.values()).count("finished")
        console.print(f"{len(runs)} runs, {finished} finished before: {file.parent}")
        if cluster is not None:
            cluster.submit(file, list(todo.values()))
        rows = {run.name: _row(run, metric, statuses[run.name]) for run in runs}
        progress = SweepProgress(len(runs), len(runs) - len(todo), at_once, console)

        def started(job: CommandLine) -> None:
            todo[job.name].prepare()
            progress.started(job.name, job.log)

        def ended(job: CommandLine, code: int, signalled: bool) -> None:
            todo[job.name].tidy()
            # A signal may arrive before a run handles it.
            otherwise: Status = "stopped" if signalled or code in STOPPED else "failed"
            row = rows[job.name] = _row(todo[job.name], metric, "finished" if code == 0 else otherwise, otherwise)
            if row["status"] == "finished":
                progress.ended(job.name, f"{metric} {row[metric]:.4f}")
            elif signalled:
                progress.stopped(job.name)
            else:
                progress.ended(job.name, f"{row['status']} (exit code {code})")
            if row["status"] == "failed":
                console.print(f"last lines of {job.log}:\n{_last_lines(job.log)}", style="red")
            _write(_table(rows), file, above)

        with progress.bar:
            imports = [name for run in todo.values() for name in run.tracker.imports]
            signum = run_jobs([run.job() for run in todo.values()], at_once, started, ended, progress.tick, imports)
        table = _table(rows)
        _write(table, file, above)
        for line in _own_images(table, metric):
            console.print(line, style="yellow")
        for run in runs:
            if statuses[run.name] == "finished":
                for each in (run.directory, *sorted(run.directory.glob(f"{PHASES}/*"))):
                    run.tracker.send_notes(each)
    if signum:
        console.print("stopped by a signal; repeat the command to continue")
        raise SystemExit(128 + signum)
    return table


def log_groups(groups: Mapping[str, Sequence[PlannedRun]], others: Mapping[str, Sequence[PlannedRun]] = {}) -> None:
    """Have trackers show the runs of each group together, with the means over the seeds of those that have finished.

    ``others`` are runs of the same groups with other settings, which do not count in the means.
    """
    members: dict[Tracker, list[RunGroup]] = defaultdict(list)
    for name, runs in groups.items():
        finished = {run.seed: run.directory for run in runs if Result.read(run.directory)}
        directories = list(dict.fromkeys(run.directory for run in (*runs, *others.get(name, ()))))
        members[runs[0].tracker].append(RunGroup(name, directories, finished))
    for tracker, of_tracker in members.items():
        tracker.log_groups(of_tracker)


def next_steps(table: pd.DataFrame, file: Path) -> str:
    """Return the file of the table of :func:`run_all`, and the commands that compare the runs and open MLflow."""
    lines = [f"table of the runs: {file}"]
    finished = table.loc[table["status"] == "finished", "directory"]
    if len(finished):
        lines += [f"to compare: fedlit compare {shlex.quote(str(file.parent))}"]
        lines += filter(None, [noted_opening(Path(finished.iloc[0]))])
    return "\n".join(lines)


def _row(run: PlannedRun, metric: str, status: Status, otherwise: Status = "failed") -> dict[str, Any]:
    """Return a row of the table; a run that ended without a result has the other status."""
    result = Result.read(run.directory) if status == "finished" else None
    if status == "finished" and result is None:
        status = otherwise
    row = {"name": run.name} | ({"stage": run.stage} if run.stage else {})
    row |= {"case": run.case, **run.labels, **run.point}
    row |= {"seed": run.seed, "data_seed": run.data_seed}
    row |= {"status": status, metric: metric_of(run.directory, metric) if result else float("nan")}
    return row | {"best_round": result.best_round if result else None, "directory": str(run.directory)}


def _table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows.values())).astype({"best_round": "Int64", "data_seed": "Int64"})


def draws_of(table: pd.DataFrame) -> str:
    """Return a description of the draws of the data that the seeds of a table have."""
    return "each with its own draw of the data" if table["data_seed"].nunique() > 1 else "on one draw of the data"


def _own_images(table: pd.DataFrame, metric: str) -> list[str]:
    """Return a line for each run of personal heads, which has another metric than the table."""
    own_metric, images = (metric.replace("auroc_macro", word) for word in ("auroc_own_macro", "auroc_images"))
    lacking = table[table[metric].isna() & (table["status"] == "finished")]
    results = [(run.name, Result.read(Path(run.directory)).metrics) for run in lacking.itertuples()]
    return [
        f"{name}: no {metric}, because personal heads rank fewer images: {own_metric} is {metrics[own_metric]:.4f}, "
        f"from {metrics[images]:,.0f} images per class; `fedlit compare` ranks the same images for all runs"
        for name, metrics in results
        if own_metric != metric and {own_metric, images} <= metrics.keys()
    ]


def _write(table: pd.DataFrame, file: Path, above: pd.DataFrame | None) -> None:
    with whole(file) as draft:
        (table if above is None else pd.concat([above, table])).to_csv(draft, index=False)


def _last_lines(log: Path, count: int = 15) -> str:
    if not log.exists():
        return "  none: its process died before it printed anything"
    with log.open(errors="replace") as file:
        return "".join(f"  {line}" for line in deque(file, maxlen=count)).rstrip()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Context manager that locks the runs of a table; the system releases the lock when the process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(file.with_name(f".{file.stem}.lock")).acquire(blocking=False)
    except Timeout as error:
        raise ConfigError(f"{file}: another process is running these runs; wait for it, or stop it") from error
    with lock:
        yield


class SweepProgress:
    """The display of a sweep, inside of its ``bar``: how many runs are done, which are running, and the time left."""

    def __init__(self, runs: int, done: int, jobs: int, console: Console) -> None:
        self.console, self._runs, self._done, self._jobs = console, runs, done, jobs
        self._began: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._seconds: list[float] = []
        self._stopping = False
        name, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}", style="cyan")
        columns = (name, BarColumn(), TimeElapsedColumn(), left)
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._all = self.bar.add_task(f"runs {done}/{runs}", total=runs, completed=done, left="")

    def started(self, name: str, log: Path) -> None:
        """Show a run; without a terminal, print the command that follows its output."""
        self._began[name] = time.monotonic()
        self._tasks[name] = self.bar.add_task(name, total=None, left="")
        if not self.console.is_terminal:
            self._say(f"started {name}: tail -F {shlex.quote(str(log))}")

    def ended(self, name: str, outcome: str) -> None:
        """Print a line for a run that has finished or failed."""
        self._done += 1
        self._seconds.append(self._clear(name))
        self.tick()
        left = "" if self.console.is_terminal or not self._left() else f"  {self._left()} left"
        took = timedelta(seconds=round(self._seconds[-1]))
        self._say(f"{name}  {outcome}  {took}  ({self._done}/{self._runs}){left}")

    def stopped(self, name: str) -> None:
        """Print a line for a run that a signal stopped; from now on the time left is unknown."""
        self._stopping = True
        self._say(f"{name}  stopped  {timedelta(seconds=round(self._clear(name)))}")
        self.tick()

    def _clear(self, name: str) -> float:
        self.bar.remove_task(self._tasks.pop(name))
        return time.monotonic() - self._began.pop(name)

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def tick(self) -> None:
        """Update the time left."""
        left = self._left()
        shown = f"runs {self._done}/{self._runs}"
        self.bar.update(self._all, completed=self._done, description=shown, left=left and f"{left} left")

    def _left(self) -> str:
        """Return the estimated time left, from the runs that ended here; "" before the first one and after a stop."""
        if self._stopping or not self._seconds or self._done == self._runs:
            return ""
        mean, now = sum(self._seconds) / len(self._seconds), time.monotonic()
        running = sum(max(0.0, mean - (now - began)) for began in self._began.values())
        waiting = mean * (self._runs - self._done - len(self._began))
        return str(timedelta(seconds=round((running + waiting) / self._jobs)))
