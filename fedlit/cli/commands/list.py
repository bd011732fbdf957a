"""``fedlit list``."""

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.cli.tables import list_labels, list_shipped, wide_console
from fedlit.experiment.parser import Parser, complain


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a list."""
    options = Parser(description=COMMANDS["list"])
    what = (
        "What to show instead: `labels` are the names that data sets give to a finding, and `reproductions` are the names "
        "for `fedlit reproduce` with what they take."
    )
    options.add_argument("what", nargs="?", default=None, type=str | None, help=what)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Print what ships, the harmonised labels, or the reproductions, and return the exit code."""
    if args.what is None:
        list_shipped(Console(highlight=False))
    elif args.what == "labels":
        list_labels(wide_console())
    elif args.what == "reproductions":
        from fedlit.reports.reproductions.listing import list_reproductions

        list_reproductions(Console(highlight=False))
    else:
        complain(f"list: expected nothing, labels or reproductions, found {args.what!r}")
        return 2
    return 0
