"""A progress bar in a notebook: one line of HTML that is updated, without a widget."""

import time
from html import escape

from rich.console import Console

SECONDS = 0.2
"""Least time between two updates, which a notebook keeps all in memory."""


class NotebookBar:
    """A line of a notebook's output: a bar, and words behind it. It is there from its first update on."""

    def __init__(self) -> None:
        self._shown, self._updated = None, 0.0

    def update(self, done: float, total: int, text: str, now: bool = False) -> None:
        """Show how much is done.

        Args:
            done: Rounds, with the share of the running one.
            total: Rounds in all.
            text: Words behind the bar.
            now: Whether it must be seen, however short ago the last update was.
        """
        from IPython.display import HTML, display

        if not now and time.monotonic() - self._updated < SECONDS:
            return
        bar = f'<progress value="{done:.3f}" max="{total}" style="width: 16em"></progress>'
        line = HTML(f'<div style="font-family: monospace">{bar} {escape(text)}</div>')
        if self._shown is None:
            self._shown = display(line, display_id=True)
        else:
            self._shown.update(line)
        self._updated = time.monotonic()


def notebook_bar(console: Console) -> NotebookBar | None:
    """Give a bar where the console prints into a notebook."""
    return NotebookBar() if console.is_jupyter and not console.quiet else None
