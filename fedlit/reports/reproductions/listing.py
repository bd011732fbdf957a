"""What can be reproduced, as ``fedlit list reproductions`` shows it."""

from rich.console import Console

from fedlit.reports.reproductions import REPRODUCTIONS
from fedlit.reports.reproductions.base import Scale
from fedlit.reports.reproductions.published import read_paper


def list_reproductions(console: Console) -> None:
    """Print each by name: what it shows, of which paper, and what it takes at either scale."""
    for name, kind in REPRODUCTIONS.items():
        tables = ", ".join(kind.tables)
        lines = {
            "shows": kind.shows,
            "from": f"{read_paper(kind.paper).source}: {tables}",
            **{scale: _taken(takes) for scale, takes in kind.scales.items()},
        }
        console.print(f"[bold]{name}")
        for word, line in lines.items():
            console.print(f"  {word:<8}{line}", markup=False, soft_wrap=True)


def _taken(scale: Scale) -> str:
    return f"{scale.data}; {scale.time}; {'no --root' if scale.root is None else f'--root: {scale.root}'}"
