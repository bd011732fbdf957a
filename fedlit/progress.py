"""What the person at the keyboard sees: a live line where there is a terminal, plain lines where there is none."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedlit.messages import ClientReport

PLAIN_SECONDS = 1.0
"""Without a terminal, at most one line in so many seconds (and one for every evaluation)."""


class RoundProgress:
    """Shows rounds: clients done, loss, mean AUROC, time left.

    Args:
        rounds: total.
        done: rounds that an earlier part of the run completed.
        enabled: False on all ranks but the first.
    """

    def __init__(self, rounds: int, done: int = 0, enabled: bool = True) -> None:
        self.console = Console(quiet=not enabled)
        self._rounds, self._live = rounds, self.console.is_terminal and enabled
        self._auroc, self._printed = float("nan"), 0.0
        columns = (
            "[bold]round",
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self._live)
        self._task = self._bar.add_task("starting", total=rounds, completed=done)
        self._clients, self._cohort = 0, 0

    def __enter__(self) -> "RoundProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the live one; nothing where there is nothing to say."""
        if text:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def round_started(self, cohort: int) -> None:
        self._clients, self._cohort = 0, cohort
        self._describe("")

    def client_done(self, report: ClientReport) -> None:
        self._clients += 1
        self._describe(f"loss {report.loss:.4f}")

    def round_done(self, index: int, metrics: Mapping[str, float]) -> None:
        evaluated = "val/auroc_macro" in metrics
        self._auroc = metrics.get("val/auroc_macro", self._auroc)
        self._describe(f"loss {metrics['train/loss']:.4f}")
        self._bar.update(self._task, completed=index + 1)
        now = time.monotonic()
        last = index + 1 == self._rounds
        if not self._live and (evaluated or last or now - self._printed > PLAIN_SECONDS):
            self._printed = now
            shown = f"  val AUROC {metrics['val/auroc_macro']:.4f}" if evaluated else ""
            self.say(
                f"round {index + 1}/{self._rounds}  loss {metrics['train/loss']:.4f}{shown}  "
                f"{metrics['time/round_s']:.1f} s"
            )

    def _describe(self, loss: str) -> None:
        auroc = f"  val AUROC {self._auroc:.4f}" if self._auroc == self._auroc else ""
        self._bar.update(self._task, description=f"clients {self._clients}/{self._cohort}  {loss}{auroc}")


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
    table.add_row("mean over defined classes", _number(metrics[f"{prefix}/auroc_macro"]), "", "")
    return table


def _number(value: float) -> str:
    return f"{value:.4f}" if value == value else "undefined"
