"""``fedlit site check``."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.experiment.parser import Parser, complain


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of what a site does by itself."""
    options = Parser(description=COMMANDS["site"])
    options.nested = {"check": _check_parser()}
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Look at a site, and return the exit code."""
    args, console = args.check, Console(highlight=False, markup=False, soft_wrap=True)

    from fedlit.sites.checking import check  # with PyTorch, which takes seconds
    from fedlit.sites.policy import Refused
    from fedlit.sites.settings import read_settings

    try:
        for line in check(read_settings(args.file), args.config):
            console.print(line)
    except (ConfigError, TrainingError, Refused) as error:
        complain(str(error))
        return 1
    console.print("ready to join")
    return 0


def _check_parser() -> Parser:
    description = (
        "Look at a site before it joins a federation: its data, its device, its folder of states, its policy, and a round of "
        "one step with weights of no meaning. Nothing is kept, and nothing leaves the process."
    )
    parser = Parser(description=description)
    parser.add_argument("file", metavar="FILE", type=Path, help="The site's own file, such as fedlit-site.yaml.")
    tried = (
        "A whole configuration to try, such as config.yaml in the directory of a run. Its code is imported only where the "
        "policy allows it. By default a small network."
    )
    parser.add_argument("--config", type=Path | None, default=None, help=tried)
    return parser
