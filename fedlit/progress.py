"""What the person at the keyboard sees: a live line where there is a terminal, plain lines where there is none."""

import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedlit.data.schemes import KINDS
from fedlit.messages import ClientReport

PLAIN_SECONDS = 1.0
"""Without a terminal, at most one line in so many seconds (and one for every evaluation)."""

SHOWN = {"val/auroc_macro": "val AUROC", "val/loss": "val loss"}
"""The validation metric that stands in the line: the first that there is."""


MEANS = {"macro": "mean over defined classes"} | {kind: f"mean over {name} classes" for kind, name in KINDS.items()}
"""Means over classes and what a table calls them."""


class RoundProgress:
    """Shows rounds: clients done, loss, mean AUROC, time left.

    Args:
        rounds: total.
        done: rounds that an earlier part of the run completed.
        enabled: False on all ranks but the first.
        console: to print to; standard output by default.
    """

    def __init__(self, rounds: int, done: int = 0, enabled: bool = True, console: Console | None = None) -> None:
        self.console = console or Console(quiet=not enabled)
        self._rounds, self._done, self._before = rounds, done, done
        self._live = self.console.is_terminal and enabled
        self._loss, self._validation, self._printed = "", "", 0.0
        self._clients, self._cohort, self._began = 0, 0, time.monotonic()
        columns = (
            TextColumn("[bold]round {task.fields[current]}/{task.total}"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self._live)
        self._task = self._bar.add_task("", total=rounds, completed=done, current=done, left="")

    def __enter__(self) -> "RoundProgress":
        self._bar.start()
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the live one; nothing where there is nothing to say."""
        if text:
            self.console.print(text, highlight=False, markup=False, soft_wrap=not self._live)

    def round_started(self, cohort: int) -> None:
        self._clients, self._cohort = 0, cohort
        self._show(self._done + 1)

    def client_done(self, report: ClientReport) -> None:
        self._clients += 1
        self._loss = f"loss {report.loss:.4f}"
        self._show(self._done + 1)

    def round_done(self, index: int, metrics: Mapping[str, float]) -> None:
        self._done, self._clients = index + 1, 0
        self._loss = f"loss {metrics['train/loss']:.4f}"
        validation = next((f"{name} {metrics[key]:.4f}" for key, name in SHOWN.items() if key in metrics), "")
        self._validation = validation or self._validation
        self._show(self._done)
        now = time.monotonic()
        if not self._live and (validation or self._done == self._rounds or now - self._printed > PLAIN_SECONDS):
            self._printed = now
            parts = (f"round {self._done}/{self._rounds}", self._loss, validation, f"{metrics['time/round_s']:.1f} s")
            left = self._left()
            self.say("  ".join(part for part in (*parts, left and f"{left} left") if part))

    def _show(self, current: int) -> None:
        working = f"clients {self._clients}/{self._cohort}" if current > self._done else ""
        text = "  ".join(part for part in (working, self._loss, self._validation) if part)
        left = self._left()
        self._bar.update(
            self._task,
            completed=self._completed(),
            current=current,
            description=text,
            left=left and f"{left} left",
        )

    def _completed(self) -> float:
        """Rounds behind us, with the share of the running one."""
        return self._done + (self._clients / self._cohort if self._cohort else 0.0)

    def _left(self) -> str:
        """Time to the last round at the pace of this session so far; "" where there is none yet."""
        here = self._completed() - self._before
        if here <= 0 or self._done == self._rounds:
            return ""
        seconds = (time.monotonic() - self._began) * (self._rounds - self._completed()) / here
        return str(timedelta(seconds=round(seconds)))


def auroc_table(metrics: Mapping[str, float], prefix: str, title: str) -> Table:
    """AUROC per class with its support, as a table for the terminal."""
    table = Table(title=title, title_justify="left")
    for name, side in (("class", "left"), ("AUROC", "right"), ("positives", "right"), ("negatives", "right")):
        table.add_column(name, justify=side)
    start = f"{prefix}/auroc/"
    for key, value in metrics.items():
        if key.startswith(start):
            name = key.removeprefix(start)
            table.add_row(
                name,
                _number(value),
                f"{metrics[f'{prefix}/n_pos/{name}']:.0f}",
                f"{metrics[f'{prefix}/n_neg/{name}']:.0f}",
            )
    table.add_section()
    for kind, shown in MEANS.items():
        if f"{prefix}/auroc_{kind}" in metrics:
            table.add_row(shown, _number(metrics[f"{prefix}/auroc_{kind}"]), "", "")
    return table


def sets_table(metrics: Mapping[str, float], sets: Sequence[str], title: str) -> Table:
    """AUROC per class, a column a test set; below, the means over all, shared, partly shared and unique classes."""
    table = Table(title=title, title_justify="left")
    table.add_column("class", no_wrap=True)
    for name in sets:
        table.add_column(name, justify="right", overflow="fold")
    start = f"test/{sets[0]}/auroc/"
    classes = [key.removeprefix(start) for key in metrics if key.startswith(start)]
    for name in classes:
        table.add_row(name, *(_number(metrics[f"test/{each}/auroc/{name}"], "-") for each in sets))
    table.add_section()
    for kind, shown in MEANS.items():
        if f"test/{sets[0]}/auroc_{kind}" in metrics:
            table.add_row(shown, *(_number(metrics[f"test/{each}/auroc_{kind}"], "-") for each in sets))
    return table


def _number(value: float, undefined: str = "undefined") -> str:
    return f"{value:.4f}" if value == value else undefined


class SweepProgress:
    """Shows the runs of a sweep: how many are done, what is running and for how long, time left.

    Args:
        runs: total.
        done: runs that earlier calls finished.
        jobs: runs side by side.
        console: to print to.
    """

    def __init__(self, runs: int, done: int, jobs: int, console: Console) -> None:
        self.console, self._runs, self._done, self._jobs = console, runs, done, jobs
        self._began: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._seconds: list[float] = []
        self._stopping = False
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._all = self._bar.add_task(f"runs {done}/{runs}", total=runs, completed=done, left="")

    def __enter__(self) -> "SweepProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def started(self, name: str, log: Path) -> None:
        """Show a run; without a live display, by a line that says how to watch what it prints."""
        self._began[name] = time.monotonic()
        self._tasks[name] = self._bar.add_task(name, total=None, left="")
        if not self.console.is_terminal:
            self._say(f"started {name}: tail -F {shlex.quote(str(log))}")

    def ended(self, name: str, outcome: str) -> None:
        """Print a line for a run that has ended by itself."""
        self._done += 1
        self._seconds.append(self._clear(name))
        self.tick()
        left = "" if self.console.is_terminal or not self._left() else f"  {self._left()} left"
        took = timedelta(seconds=round(self._seconds[-1]))
        self._say(f"{name}  {outcome}  {took}  ({self._done}/{self._runs}){left}")

    def stopped(self, name: str) -> None:
        """Print a line for a run that was told to stop; from now on no time is left."""
        self._stopping = True
        self._say(f"{name}  stopped  {timedelta(seconds=round(self._clear(name)))}")
        self.tick()

    def _clear(self, name: str) -> float:
        """Take a run from the display; returns its seconds."""
        self._bar.remove_task(self._tasks.pop(name))
        return time.monotonic() - self._began.pop(name)

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def tick(self) -> None:
        """Look at the clock."""
        left = self._left()
        shown = f"runs {self._done}/{self._runs}"
        self._bar.update(self._all, completed=self._done, description=shown, left=left and f"{left} left")

    def _left(self) -> str:
        """Time to the end at the pace of the runs that ended here; "" before the first, and after a stop."""
        if self._stopping or not self._seconds or self._done == self._runs:
            return ""
        mean, now = sum(self._seconds) / len(self._seconds), time.monotonic()
        going = sum(max(0.0, mean - (now - began)) for began in self._began.values())
        waiting = mean * (self._runs - self._done - len(self._began))
        return str(timedelta(seconds=round((going + waiting) / self._jobs)))
