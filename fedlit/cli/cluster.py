"""The options by which a command runs what it has planned on a cluster."""

import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from fedlit.cli.tables import wide_console
from fedlit.core.errors import ConfigError
from fedlit.experiment.cluster.submission import Cluster, Slurm, Submission
from fedlit.experiment.parser import Parser
from fedlit.experiment.planned_run import PlannedRun
from fedlit.reports.table import Table


def add_options(options: Parser) -> None:
    """Add the options of a command that starts many runs."""
    on = "YAML with what each job asks of SLURM. The runs become one array of jobs, and this command ends."
    options.add_argument("--on", type=Path | None, default=None, metavar="CLUSTER.yaml", help=on)
    status = "Show how far the jobs of --on are, without starting any."
    options.add_argument("--status", type=bool, default=False, help=status)
    cancel = "Cancel the jobs of --on. What has finished stays."
    options.add_argument("--cancel", type=bool, default=False, help=cancel)
    listing = "Write a configuration for each run, and print the commands that train them, to start them another way."
    options.add_argument("--print_jobs", type=bool, default=False, help=listing)


def runner(args: Namespace, words: Sequence[str], default: int = 1) -> int | Slurm:
    """Return how many runs of a command run here at a time, or the cluster on which they run.

    Args:
        args: The options of the command.
        words: Its words after ``fedlit``.
        default: Its number of runs at a time without ``--jobs``.

    Raises:
        ConfigError: Two options contradict each other, or the YAML of ``--on`` has a mistake.
    """
    if args.on is None:
        return args.jobs
    if args.jobs != default:
        raise ConfigError(
            f"--jobs: expected none with --on, found {args.jobs}; write `parallel: {args.jobs}` into {args.on}"
        )
    return Slurm(Cluster.read(args.on), tuple(words))


def looked(
    args: Namespace, ways: int | Slurm, plans: Mapping[Path, Callable[[], Sequence[PlannedRun]]], console: Console
) -> bool:
    """Do what ``--status``, ``--cancel``, ``--print_jobs`` and a dry run ask for; return whether it was one of them.

    Args:
        args: The options of the command.
        ways: What :func:`runner` returned.
        plans: Functions that return the runs, by the tables of the runs. Only ``--print_jobs`` and a dry run need
            them.
        console: The console.

    Raises:
        ConfigError: Nothing was submitted.
    """
    submissions = [Submission.of(table) for table in plans]
    if (args.status or args.cancel) and not any(each.tasks for each in submissions):
        folders = " or ".join(str(table.parent) for table in plans)
        raise ConfigError(f"{folders}: expected jobs of --on, found none; submit them first")
    if args.print_jobs:
        for submission in submissions:
            for file in submission.freeze(plans[submission.table]()):
                console.print(shlex.join(["fedlit", "job", str(file)]))
    elif isinstance(ways, Slurm) and getattr(args, "dry_run", False):
        for submission in submissions:
            console.print(ways.script(submission, plans[submission.table]()))
    elif args.status:
        states = [state for each in submissions for state in each.states()]
        wide_console().print(Table("", ("run", "state"), (), [(name, state) for name, state, _ in states]).printed())
        for name, _, lines in states:
            if lines:
                console.print(f"last lines of {name}:\n{lines}", style="red")
    elif args.cancel:
        cancelled = sum(each.cancel() for each in submissions if each.tasks)
        console.print(f"cancelled {cancelled} jobs; what has finished stays. To continue, submit again")
    else:
        return False
    return True
