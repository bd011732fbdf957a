"""``fedlit sweep``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.cluster import add_options as add_cluster_options
from fedlit.cli.cluster import looked, runner
from fedlit.cli.commands import COMMANDS
from fedlit.cli.tables import sweep_table
from fedlit.core.errors import ConfigError
from fedlit.core.ranges import Count
from fedlit.experiment.helptexts import SWEEP
from fedlit.experiment.parser import Parser, complain
from fedlit.experiment.sweep import draws_of, load_sweep, next_steps, plan, run_sweep


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a sweep."""
    options = Parser(description=COMMANDS["sweep"], epilog=SWEEP)
    add_options(options, "sweep", "runs")
    return options


def add_options(options: Parser, kind: str, runs: str) -> None:
    """Add the options of a command that starts many runs: a sweep, or a tuning."""
    options.add_argument("-c", "--config", type=str, required=True, help=f"YAML of the {kind}. See below.")
    jobs = "Number of runs at a time. Each has its own federation.workers."
    options.add_argument("--jobs", type=Count, default=1, help=jobs)
    check = f"Check the configurations and list the {runs}, without starting any."
    options.add_argument("--dry_run", type=bool, default=False, help=check)
    folder = "Folder of all runs: RUN_DIR/EXPERIMENT/NAME/. By default as in the YAML, or runs/."
    options.add_argument("--run_dir", type=str | None, default=None, help=folder)
    root = "Folder of the data of plans that name their roots, or the folder above if it holds them once."
    options.add_argument("--root", type=Path | None, default=None, help=root)
    overrides = "Keys for all runs, which override those of the YAML: --set '{data.root: FOLDER}'."
    options.add_argument("--set", type=dict[str, Any], default={}, help=overrides)
    add_cluster_options(options)


def of_command(args: Namespace, run_dir: str) -> dict[str, Any]:
    """Return the fields of a plan that the command sets; its keys are also those of the runs that train first."""
    given = {"given": args.set, "given_bodies": args.set, "root": args.root}
    return given | {"run_dir": args.run_dir or run_dir}


def execute(args: Namespace, parser: Parser) -> int:
    """Run a sweep, or list its runs; return the exit code."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        sweep = load_sweep(args.config)
        sweep = replace(sweep, **of_command(args, sweep.run_dir))
        ways = runner(args, parser.sources.argv)
        plans = [each for each in (sweep.bodies, sweep) if each is not None]
        if looked(args, ways, {each.table: partial(plan, each) for each in plans}, console):
            return 0
        if args.dry_run:
            for run in (run for each in plans for run in plan(each)):
                console.print(f"{run.directory}  {run.standing()}")
            return 0
        table = run_sweep(sweep, ways, console)
    except ConfigError as error:  # its message already names the place
        complain(error)
        return 2
    console.print(sweep_table(sweep, table, draws_of(table), console.width))
    console.print(next_steps(table, sweep.table))
    return 0 if (table["status"] == "finished").all() else 1
