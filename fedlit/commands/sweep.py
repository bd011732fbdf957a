"""``fedlit sweep``."""

from dataclasses import replace
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from fedlit.errors import ConfigError
from fedlit.helptexts import SWEEP
from fedlit.parser import Parser, complain
from fedlit.sweep import load_sweep, next_steps, plan, run_sweep, summary

DESCRIPTION = "Run a grid of cases, values and seeds; a call after an interruption goes on with what is left."


def parser() -> Parser:
    """The options of a sweep."""
    options = Parser(description=DESCRIPTION, epilog=SWEEP)
    options.add_argument("-c", "--config", type=str, required=True, help="the YAML of the sweep, see below")
    options.add_argument("--jobs", type=int, default=1, help="runs side by side, each with its federation.workers")
    options.add_argument("--dry_run", type=bool, default=False, help="check the configurations, list the runs, and end")
    options.add_argument("--run_dir", type=str | None, default=None, help="runs go to RUN_DIR/EXPERIMENT/NAME/")
    given = "keys for all runs, over the YAML's own: --set '{data.root: FOLDER}'"
    options.add_argument("--set", type=dict[str, Any], default={}, help=given)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Run a sweep, or list its runs; returns the exit code."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        sweep = load_sweep(args.config)
        sweep = replace(sweep, set={**sweep.set, **args.set}, run_dir=args.run_dir or sweep.run_dir)
        if args.dry_run:
            for run in plan(sweep):
                console.print(f"{run.directory}  {run.standing()}")
            return 0
        table = run_sweep(sweep, args.jobs, console)
    except ConfigError as error:  # explained already, with its place
        complain(str(error))
        return 2
    console.print(summary(sweep, table))
    console.print(next_steps(table, sweep.table))
    return 0 if (table["status"] == "finished").all() else 1
