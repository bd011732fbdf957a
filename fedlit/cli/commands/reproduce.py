"""``fedlit reproduce``."""

import shlex
from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.cluster import add_options as add_cluster_options
from fedlit.cli.cluster import looked, runner
from fedlit.cli.commands import COMMANDS
from fedlit.experiment.helptexts import REPRODUCE
from fedlit.experiment.options import OF_A_CLUSTER
from fedlit.experiment.parser import Parser


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a reproduction."""
    from fedlit.reports.reproductions.reproduction import Reproduction

    options = Parser(description=COMMANDS["reproduce"], epilog=REPRODUCE)
    name = "Name of the figure or table (see below), or your own YAML document."
    options.add_argument("name", metavar="NAME", type=str, help=name)
    options.add_class_arguments(Reproduction, skip={"name"})
    add_cluster_options(options)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Run a reproduction; return the exit code."""
    from fedlit.reports.reproductions.reproduction import Reproduction

    console = Console(highlight=False, markup=False, soft_wrap=True)
    options = {key: value for key, value in args.items() if key not in ("config", *OF_A_CLUSTER)}
    reproduction = Reproduction(**options)
    reproduction.jobs = ways = runner(args, parser.sources.argv, Reproduction.jobs)
    for name, value in reproduction.document.environment.items() if args.print_jobs else ():
        console.print(f"export {name}={shlex.quote(value)}")
    if any(args[key] for key in OF_A_CLUSTER) and looked(args, ways, reproduction.tables(), console):
        return 0
    reproduction.run(console)
    return 0
