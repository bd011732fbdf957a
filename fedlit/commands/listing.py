"""``fedlit list``."""

from jsonargparse import Namespace
from rich.console import Console

from fedlit.choices import list_labels, list_shipped
from fedlit.data.check_report import report_console
from fedlit.parser import Parser, complain
from fedlit.reports.reproductions.listing import list_reproductions

DESCRIPTION = "Show what ships, by the short names that a YAML may use, the harmonised labels, or the reproductions."


def parser() -> Parser:
    """The options of a list."""
    options = Parser(description=DESCRIPTION)
    what = "`labels`: what data sets call a finding; `reproductions`: names for `fedlit reproduce`, with what they take"
    options.add_argument("what", nargs="?", default=None, type=str | None, help=what)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Print what ships, the harmonised labels, or the reproductions; returns the exit code."""
    if args.what is None:
        list_shipped(Console(highlight=False))
    elif args.what == "labels":
        list_labels(report_console())
    elif args.what == "reproductions":
        list_reproductions(Console(highlight=False))
    else:
        complain(f"list: expected nothing, labels or reproductions, found {args.what!r}")
        return 2
    return 0
