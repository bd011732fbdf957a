"""``fedlit reproduce``."""

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.experiment.helptexts import REPRODUCE
from fedlit.experiment.parser import Parser


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a reproduction."""
    from fedlit.reports.reproductions.reproduction import Reproduction

    options = Parser(description=COMMANDS["reproduce"], epilog=REPRODUCE)
    name = "Name of the figure or table (see below), or your own YAML document."
    options.add_argument("name", metavar="NAME", type=str, help=name)
    options.add_class_arguments(Reproduction, skip={"name"})
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Run a reproduction; return the exit code."""
    from fedlit.reports.reproductions.reproduction import Reproduction

    options = dict(args.items())
    options.pop("config", None)
    Reproduction(**options).run(Console(highlight=False, markup=False, soft_wrap=True))
    return 0
