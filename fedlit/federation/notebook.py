"""A progress bar in notebooks: one updated line of HTML, which needs no ipywidgets."""

import time
from html import escape

from rich.console import Console

SECONDS = 0.2
"""Shortest time between two updates; a notebook keeps all of them in memory."""


class NotebookBar:
    """A line of a notebook's output with a bar and a text, which appears at the first update."""

    def __init__(self) -> None:
        self._shown, self._updated = None, 0.0

    def update(self, done: float, total: int, text: str, now: bool = False) -> None:
        """Show the completed rounds and a text, unless the last update is too recent and it need not be ``now``."""
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
    """Return a bar if the console prints to a notebook, otherwise None."""
    return NotebookBar() if console.is_jupyter and not console.quiet else None
