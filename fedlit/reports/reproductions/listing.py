"""The list of reproductions that ``fedlit list reproductions`` prints."""

from itertools import groupby
from pathlib import Path

from rich.console import Console

from fedlit.reports.reproductions import NAMES
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.published import PUBLISHED, read_paper


def list_reproductions(console: Console) -> None:
    """Print the reproductions of each paper, with their data, time and ``--root`` at every scale."""
    for source, files in groupby(map(find, NAMES), _source):
        console.print(f"[bold]{source}", soft_wrap=True)
        before: dict[str, str] = {}
        for document in map(read_document, files):
            console.print(f"  [bold]{document.name}[/]  {document.shows}", soft_wrap=True)
            roots = {n: "no --root" if s.root is None else f"--root: {s.root}" for n, s in document.scales.items()}
            takes = "\n".join(f"    {n:<8}{s.data}; {s.time}; {roots[n]}" for n, s in document.scales.items())
            first = before.setdefault(takes, document.name)
            console.print(takes if first == document.name else f"    as {first}", markup=False, soft_wrap=True)


def _source(file: Path) -> str:
    return read_paper(file.parent).source if (file.parent / PUBLISHED).is_file() else "Of fedlit"
