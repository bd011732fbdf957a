"""``fedlit list``."""

from jsonargparse import Namespace
from rich.console import Console

from fedlit.choices import list_labels, list_shipped
from fedlit.data.check_report import report_console
from fedlit.parser import Parser, complain

DESCRIPTION = "Show what ships, by the short names that a YAML may use, or the harmonised labels."


def parser() -> Parser:
    """The options of a list."""
    options = Parser(description=DESCRIPTION)
    options.add_argument(
        "what", nargs="?", default=None, type=str | None, help="`labels`: what data sets call a finding"
    )
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Print what ships, or the harmonised labels; returns the exit code."""
    if args.what not in (None, "labels"):
        complain(f"list: expected nothing or labels, found {args.what!r}")
        return 2
    if args.what == "labels":
        list_labels(report_console())
    else:
        list_shipped(Console(highlight=False))
    return 0
