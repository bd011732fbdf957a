"""The progress of a sweep on the terminal."""

import shlex
import time
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


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
        """Remove a run from the display; return its duration in seconds."""
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
