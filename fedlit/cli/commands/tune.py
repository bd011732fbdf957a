"""``fedlit tune``."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.cluster import looked, runner
from fedlit.cli.commands import COMMANDS
from fedlit.cli.commands.sweep import add_options, of_command
from fedlit.core.errors import ConfigError
from fedlit.experiment.grid import plan
from fedlit.experiment.helptexts import TUNE
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.parser import Parser, complain
from fedlit.experiment.plan import Plan
from fedlit.experiment.planned_run import PlannedRun
from fedlit.experiment.tuning import first_points_of, load_tuning, run_tuning, runs_of
from fedlit.tracking.mlflow import noted_opening


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a tuning."""
    options = Parser(description=COMMANDS["tune"], epilog=TUNE)
    add_options(options, "tuning", "tries")
    report = "Folder for the report and its tables. By default tuning/EXPERIMENT/."
    options.add_argument("--output", type=Path | None, default=None, help=report)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Tune, or list the tries; return the exit code."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        tuning = load_tuning(args.config)
        tuning = replace(tuning, **of_command(args, tuning.run_dir))
        ways = runner(args, parser.sources.argv)
        bodies = {tuning.bodies.table: partial(plan, tuning.bodies)} if tuning.bodies is not None else {}
        if looked(args, ways, bodies | {tuning.table: partial(_tries, tuning)}, console):
            return 0
        if args.dry_run:
            for run in _tries(tuning):
                console.print(f"{run.directory}  {run.standing()}")
            if tuning.sampler == "tpe":
                console.print(f"then tries that Optuna suggests, until each method has {tuning.tries}")
            console.print(
                f"then each seed chooses the settings of each of {len(tuning.cases)} methods among its own runs"
                if tuning.rule.by == "seed"
                else f"then the best settings of each of {len(tuning.cases)} methods with seeds {tuning.seeds}"
            )
            return 0
        tuned, finals = run_tuning(tuning, ways, console)
    except ConfigError as error:  # its message already names the place
        complain(error)
        return 2
    from fedlit.reports.tuning import write_tuning_report

    folder = args.output or Path("tuning") / tuning.experiment
    console.print(write_tuning_report(tuning, tuned, finals, folder))
    console.print(f"report and tables: {folder}")
    console.print(f"to compare the final runs: fedlit compare {shlex.quote(str(tuning.directory))}")
    if opening := noted_opening(tuned[0].runs[0].directory):
        console.print(opening)
    return 0 if (finals["status"] == "finished").all() else 1


def _tries(tuning: Plan) -> list[PlannedRun]:
    tries = runs_of(tuning, "try", first_points_of(tuning), experiment_parser())
    return [run for runs in tries.values() for run in runs]
