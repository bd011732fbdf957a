"""``fedlit runs list``, ``fedlit runs log`` and ``fedlit runs remove``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console, RenderableType
from rich.filesize import decimal

from fedlit.cli.commands import COMMANDS
from fedlit.cli.tables import minute, wide_console
from fedlit.core.errors import ConfigError
from fedlit.experiment.helptexts import STORE
from fedlit.experiment.parser import Parser, complain
from fedlit.experiment.past_runs import RunState, list_runs, noted_runs, removable, remove_run
from fedlit.experiment.rule import VALIDATION
from fedlit.reports.table import Table
from fedlit.tracking.mlflow import MLflowTracker, noted_opening

LIST = "List runs with their state, size and validation metric, or rank them."
LOG = """Send finished runs of a cluster to MLflow, with the times of their rounds, once each. Jobs of --on only note in
their directories what MLflow gets, because many writers damage a database on a shared disk. The job that follows them
does this, too."""
REMOVE = """Remove runs: their directories, and their MLflow runs with their artifacts. The command first lists them and
asks. A run that a process is using is refused. MLflow keeps deleted runs in its database until `mlflow gc`."""


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of the commands."""
    options = Parser(description=COMMANDS["runs"])
    listing, logging, removal = Parser(description=LIST), Parser(description=LOG), Parser(description=REMOVE)
    folders = "Run directories, the folder of an experiment, or the folder of all runs. By default runs/."
    listing.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, default=[Path("runs")], help=folders)
    metric = f"Rank by this metric of each run's best model: an AUROC such as {VALIDATION}, a loss, or what a run "
    metric += "monitors. Test metrics are refused."
    listing.add_argument("--by", metavar="METRIC", type=str | None, default=None, help=metric)
    runs = "Run directories: runs/EXPERIMENT/RUN."
    removal.add_argument("runs", metavar="RUN", nargs="+", type=Path, help=runs)
    removal.add_argument("--yes", action="store_true", help="Do not ask.")
    store = "MLflow's store, if its address has credentials. By default the one that the run has noted."
    removal.add_argument("--tracking_uri", type=str | None, default=None, help=store)
    logging.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, default=[Path("runs")], help=folders)
    logging.add_argument("--tracking_uri", type=str | None, default=None, help=STORE)
    options.nested = {"list": listing, "log": logging, "remove": removal}
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """List or remove runs; return the exit code."""
    console = wide_console()
    try:
        if args.subcommand == "list":
            console.print(_table(list_runs(args.list.folders or [Path("runs")], args.list.by)))
            return 0
        if args.subcommand == "log":
            return _log(args.log, console)
        return _remove(args.remove, console)
    except ConfigError as error:
        complain(error)
        return 2


def _log(args: Namespace, console: Console) -> int:
    tracker = MLflowTracker(args.tracking_uri)
    runs = [run for run in noted_runs(args.folders or [Path("runs")]) if tracker.send_notes(run)]
    console.print("\n".join([f"sent {run}" for run in runs] or ["nothing to send"]))
    if runs and (opening := noted_opening(runs[0])):
        console.print(opening)
    return 0


def _remove(args: Namespace, console: Console) -> int:
    runs = removable(args.runs)
    console.print(_table(runs))
    if not args.yes:
        if not sys.stdin.isatty():
            complain("remove: expected an answer on a terminal, found none; add --yes")
            return 2
        if input(f"Remove {len(runs)} runs, also from MLflow? [y/N] ").strip().lower() not in ("y", "yes"):
            console.print("nothing was removed")
            return 1
    for run in runs:
        console.print(remove_run(run.directory, args.tracking_uri), soft_wrap=True)
    return 0


def _table(runs: Sequence[RunState]) -> RenderableType:
    metrics = {run.metric for run in runs}
    rows = [
        (
            str(run.directory),
            run.status,
            str(run.rounds),
            _value(run, named=len(metrics) > 1),
            decimal(run.size),
            minute(run.started),
        )
        for run in runs
    ]
    head = metrics.pop() if len(metrics) == 1 else "metric of its best model"
    return Table("", ("run", "status"), ("rounds", head, "size", "started"), rows).printed()


def _value(run: RunState, named: bool) -> str:
    if run.value != run.value:
        return "-"
    return f"{run.metric} {run.value:.4f}" if named else f"{run.value:.4f}"
