"""``fedlit list``."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.cli.tables import list_checks, list_labels, list_shipped, wide_console
from fedlit.experiment.choices import AXES
from fedlit.experiment.mistakes import near
from fedlit.experiment.parser import Parser, complain


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a list."""
    options = Parser(description=COMMANDS["list"])
    what = (
        "What to list instead of all classes: one heading of that list, such as `aggregators`, `labels` (the name of "
        "each finding in each data set), `reproductions` (the names for `fedlit reproduce`, with the data and time "
        "that they need) or `checks` (what fedlit checks in your own model, data and machine before it trains)."
    )
    options.add_argument("what", nargs="?", default=None, type=str | None, help=what)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Print the built-in classes, the harmonised labels, the reproductions or the checks; return the exit code."""
    if args.what is None:
        list_shipped(Console(highlight=False))
    elif args.what in AXES:
        list_shipped(Console(highlight=False), [args.what])
    elif args.what == "labels":
        list_labels(wide_console())
    elif args.what == "reproductions":
        list_reproductions(Console(highlight=False))
    elif args.what == "checks":
        list_checks(Console(highlight=False))
    else:
        *others, last = names = (*AXES, "labels", "reproductions", "checks")
        expected = f"expected nothing, {', '.join(others)} or {last}"
        complain(f"list: {expected}, found {args.what!r}{near(args.what, names)}")
        return 2
    return 0


def list_reproductions(console: Console) -> None:
    """Print the reproductions of each paper, with their data, time and ``--root`` at every scale."""
    from fedlit.reports.reproductions import NAMES
    from fedlit.reports.reproductions.document import find, read_document
    from fedlit.reports.reproductions.published import PUBLISHED, read_paper

    def source(file: Path) -> str:
        return read_paper(file.parent).source if (file.parent / PUBLISHED).is_file() else "Of fedlit"

    for paper, files in groupby(map(find, NAMES), source):
        console.print(f"[bold]{paper}", soft_wrap=True)
        before: dict[str, str] = {}
        for document in map(read_document, files):
            console.print(f"  [bold]{document.name}[/]  {document.shows}", soft_wrap=True)
            roots = {n: "no --root" if s.root is None else f"--root: {s.root}" for n, s in document.scales.items()}
            takes = "\n".join(f"    {n:<8}{s.data}; {s.time}; {roots[n]}" for n, s in document.scales.items())
            first = before.setdefault(takes, document.name)
            console.print(takes if first == document.name else f"    as {first}", markup=False, soft_wrap=True)
