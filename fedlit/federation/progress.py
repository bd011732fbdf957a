"""Progress output: a live line in a terminal or notebook, plain lines elsewhere."""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedlit.core.messages import ClientReport
from fedlit.federation.callbacks import Callback, FitState
from fedlit.federation.description import announcement
from fedlit.federation.engines.scores import Scores

PLAIN_SECONDS = 1.0
"""Shortest time between lines without a terminal, except for evaluations, which always print one."""

MOST_LINES = 8
"""Largest number of lines that say what leaves the sites; all of them are in a file of the run."""

SHOWN = {"val/auroc_macro": "val AUROC", "val/loss": "val loss"}
"""Validation metrics in the line; the first available one is shown."""

PAUSE_IN_NOTEBOOKS = 0.2
"""Shortest time in seconds between two updates; a notebook keeps all of them in memory."""


class RoundProgress(Callback):
    """Progress display with completed clients, loss, mean AUROC and remaining time.

    Args:
        enabled: False on all ranks but the first.
        console: Console to print to. By default standard output.
    """

    def __init__(self, enabled: bool = True, console: Console | None = None) -> None:
        self.console = console or Console(quiet=not enabled)
        self._live = self.console.is_terminal and enabled
        self._notebook = notebook_bar(self.console)
        columns = (
            TextColumn("[bold]round {task.fields[current]}/{task.total}"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self._live)

    def on_fit_start(self, state: FitState) -> None:
        """Print the announcement and show the live line."""
        self._rounds, self._done, self._before = state.session.federation.rounds, state.done, state.done
        self._loss, self._validation, self._printed, self._evaluated = "", "", 0.0, False
        self._clients, self._cohort, self._began = 0, 0, time.monotonic()
        self._task = self._bar.add_task("", total=self._rounds, completed=self._done, current=self._done, left="")
        self._bar.start()
        for line in announcement(state.session, state.monitor, state.done):
            self._say(line)
        if (account := state.session.account) is not None:
            for line in account.lines(state.server.aggregators, self._rounds):
                self._say(line)

    def on_round_start(self, state: FitState) -> None:
        """Show the new round."""
        self._clients, self._cohort = 0, len(state.rnd.cohort)
        self._show(self._done + 1)

    def on_client_end(self, state: FitState, report: ClientReport) -> None:
        """Count a reply."""
        self._clients += 1
        self._loss = _loss(report.loss)
        self._show(self._done + 1)

    def on_evaluation_end(self, state: FitState, scores: Sequence[Scores]) -> None:
        """After the first evaluation, warn about a monitor that rests on few positives."""
        if not self._evaluated:
            self._say(state.monitor.few_positives(state.metrics, state.session.everyone.schemes))
        self._evaluated = True

    def on_round_end(self, state: FitState) -> None:
        """Show loss, AUROC and remaining time; without a terminal, print a line occasionally."""
        metrics = state.metrics
        self._done, self._clients = state.done, 0
        self._loss = _loss(metrics.get("train/loss", math.nan))
        validation = next((f"{name} {_shown(metrics, key)}" for key, name in SHOWN.items() if key in metrics), "")
        self._validation = validation or self._validation
        self._show(self._done, now=True)
        now, plain = time.monotonic(), not self._live and not self._notebook
        if plain and (validation or self._done == self._rounds or now - self._printed > PLAIN_SECONDS):
            self._printed = now
            parts = (f"round {self._done}/{self._rounds}", self._loss, validation, f"{metrics['time/round_s']:.1f} s")
            left = self._left()
            self._say("  ".join(part for part in (*parts, left and f"{left} left") if part))
        if self._done == 1:
            lines = state.sent.splitlines()
            self._say("\n".join(lines[:MOST_LINES]))
            if (more := len(lines) - MOST_LINES) > 0:
                self._say(f"and {more} more lines in leaves_a_site.txt")

    def on_fit_end(self, state: FitState) -> None:
        """Print the reason for an early end and remove the live line."""
        federation, best = state.session.federation, state.best
        if state.stop:
            self._say(f"stopped after round {state.done}: {state.stop}")
        elif state.done < federation.rounds and state.over:
            near = f" ({best.near} more within the margin)" if best.near else ""
            self._say(
                f"stopped after round {state.done}: no improvement on round {best.round} in {federation.patience} "
                f"rounds{near}"
            )
        if state.over and state.monitor.metric and best.value != best.value:
            self._say(f"{state.monitor.metric} was undefined in every round: the last model counts as the best")
        if (account := state.session.account) is not None:
            self._say(account.lines(state.server.aggregators, state.done)[0])
        self._bar.stop()

    def on_exception(self, state: FitState, error: BaseException) -> None:
        """Remove the live line."""
        self._bar.stop()

    def _say(self, text: str) -> None:
        if text:
            self.console.print(text, highlight=False, markup=False, soft_wrap=not self._live)

    def _show(self, current: int, now: bool = False) -> None:
        if not (self._live or self._notebook):
            return
        working = f"clients {self._clients}/{self._cohort}" if current > self._done else ""
        text = "  ".join(part for part in (working, self._loss, self._validation) if part)
        left = self._left()
        self._bar.update(
            self._task, completed=self._completed(), current=current, description=text, left=left and f"{left} left"
        )
        if self._notebook:
            parts = (f"round {current}/{self._rounds}", text, left and f"{left} left")
            self._notebook.update(self._completed(), self._rounds, "  ".join(filter(None, parts)), now)

    def _completed(self) -> float:
        return self._done + (self._clients / self._cohort if self._cohort else 0.0)

    def _left(self) -> str:
        """Return the time to the last round at the pace of this session so far, or "" if it is unknown."""
        completed = self._completed() - self._before
        if completed <= 0 or self._done == self._rounds:
            return ""
        seconds = (time.monotonic() - self._began) * (self._rounds - self._completed()) / completed
        return str(timedelta(seconds=round(seconds)))


def _loss(loss: float) -> str:
    return "" if math.isnan(loss) else f"loss {loss:.4f}"


def _shown(metrics: Mapping[str, float], key: str) -> str:
    """Return a validation metric as text; if it is NaN, whether it is undefined or sites do not report it."""
    if metrics[key] == metrics[key]:
        return f"{metrics[key]:.4f}"
    counts = [value for name, value in metrics.items() if name.startswith("val/n_pos/")]
    return "not reported" if counts and all(count != count for count in counts) else "undefined"


class NotebookBar:
    """A line of HTML in a notebook with a bar and a text, which needs no ipywidgets and appears at the first update."""

    def __init__(self) -> None:
        self._shown, self._updated = None, 0.0

    def update(self, done: float, total: int, text: str, now: bool = False) -> None:
        """Show the completed rounds and a text, unless the last update is too recent and it need not be ``now``."""
        from IPython.display import HTML, display

        if not now and time.monotonic() - self._updated < PAUSE_IN_NOTEBOOKS:
            return
        bar = f'<progress value="{done:.3f}" max="{total}" style="width: 16em"></progress>'
        line = HTML(f'<div style="font-family: monospace">{bar} {escape(text)}</div>')
        if self._shown is None:
            self._shown = display(line, display_id=True)
        else:
            self._shown.update(line)
        self._updated = time.monotonic()


def notebook_bar(console: Console) -> NotebookBar | None:
    """Return a bar if the console prints to a notebook, otherwise None."""
    return NotebookBar() if console.is_jupyter and not console.quiet else None
