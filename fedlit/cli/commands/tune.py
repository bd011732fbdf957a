"""``fedlit tune``."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.core.errors import ConfigError
from fedlit.experiment.helptexts import TUNE
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.parser import Parser, complain
from fedlit.experiment.tuning import load_tuning, run_tuning


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a tuning."""
    options = Parser(description=COMMANDS["tune"], epilog=TUNE)
    options.add_argument("-c", "--config", type=str, required=True, help="YAML of the tuning. See below.")
    jobs = "Number of runs at a time. Each has its own federation.workers."
    options.add_argument("--jobs", type=int, default=1, help=jobs)
    check = "Check the configurations and list the tries, without starting any."
    options.add_argument("--dry_run", type=bool, default=False, help=check)
    report = "Folder for the report and its tables. By default tuning/EXPERIMENT/."
    options.add_argument("--output", type=Path | None, default=None, help=report)
    folder = "Folder of all runs: RUN_DIR/EXPERIMENT/NAME/. By default as in the YAML, or runs/."
    options.add_argument("--run_dir", type=str | None, default=None, help=folder)
    overrides = "Keys for all runs, which override those of the YAML: --set '{data.root: FOLDER}'."
    options.add_argument("--set", type=dict[str, Any], default={}, help=overrides)
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Tune, or list the tries; return the exit code."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        tuning = load_tuning(args.config)
        tuning = replace(tuning, set={**tuning.set, **args.set}, run_dir=args.run_dir or tuning.run_dir)
        if args.dry_run:
            for runs in tuning.runs("try", tuning.points, experiment_parser()).values():
                for run in runs:
                    console.print(f"{run.directory}  {run.standing()}")
            console.print(f"then the best settings of each of {len(tuning.cases)} methods with seeds {tuning.seeds}")
            return 0
        tuned, finals = run_tuning(tuning, args.jobs, console)
    except ConfigError as error:  # its message already names the place
        complain(str(error))
        return 2
    from fedlit.reports.tuning import write_tuning_report

    folder = args.output or Path("tuning") / tuning.experiment
    console.print(write_tuning_report(tuning, tuned, finals, folder))
    console.print(f"report and tables: {folder}")
    console.print(f"to compare the final runs: fedlit compare {shlex.quote(str(tuning.directory))}")
    return 0 if (finals["status"] == "finished").all() else 1
