"""What can be reproduced, as ``fedlit list reproductions`` shows it."""

from itertools import groupby

from rich.console import Console

from fedlit.reports.reproductions import REPRODUCTIONS
from fedlit.reports.reproductions.base import Scale
from fedlit.reports.reproductions.published import read_paper


def list_reproductions(console: Console) -> None:
    """Print each by name, below its paper: what it shows, and what it takes at either scale."""
    for paper, kinds in groupby(REPRODUCTIONS.values(), lambda kind: kind.paper):
        console.print(f"[bold]{read_paper(paper).source}", soft_wrap=True)
        before: dict[str, str] = {}
        for kind in kinds:
            console.print(f"  [bold]{kind.name}[/]  {kind.shows}", soft_wrap=True)
            takes = "\n".join(f"    {scale:<8}{_taken(each)}" for scale, each in kind.scales.items())
            first = before.setdefault(takes, kind.name)
            console.print(takes if first == kind.name else f"    as {first}", markup=False, soft_wrap=True)


def _taken(scale: Scale) -> str:
    return f"{scale.data}; {scale.time}; {'no --root' if scale.root is None else f'--root: {scale.root}'}"
