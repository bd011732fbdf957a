"""``fedlit reproduce``."""

from jsonargparse import Namespace
from rich.console import Console

from fedlit.errors import ConfigError
from fedlit.helptexts import REPRODUCE
from fedlit.mistakes import near
from fedlit.parser import Parser
from fedlit.reports.reproductions.base import Reproduction

DESCRIPTION = "Run what a paper's figure or table needs, and write it; a call after an interruption goes on."


def parser() -> Parser:
    """The options of a reproduction."""
    options = Parser(description=DESCRIPTION, epilog=REPRODUCE)
    options.add_argument("what", metavar="NAME", type=str, help="of the figure or table, see below")
    options.add_class_arguments(Reproduction)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Run a reproduction; returns the exit code."""
    from fedlit.reports.reproductions import REPRODUCTIONS

    options = dict(args.items())
    name = options.pop("what")
    options.pop("config", None)
    if name not in REPRODUCTIONS:
        hint = near(name, REPRODUCTIONS) or f"; there are {', '.join(REPRODUCTIONS)}"
        raise ConfigError(f"reproduce: there is no {name!r}{hint}")
    REPRODUCTIONS[name](**options).run(Console(highlight=False, markup=False, soft_wrap=True))
    return 0
