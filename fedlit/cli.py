"""The command line: ``fedlit fit``, ``test``, ``predict``, ``list``."""

import difflib
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import LightningModule
from rich.console import Console

import fedlit
from fedlit.aggregators import Aggregator
from fedlit.commands import Experiment, run_fit, run_predict, run_test
from fedlit.data import FederatedDataModule, Partition
from fedlit.errors import CheckpointError, ConfigError, TrainingError
from fedlit.fabric import launch, make_fabric
from fedlit.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.randomness import seed_process
from fedlit.schedules import ConstantSchedule, Schedule
from fedlit.tracking.base import Tracker
from fedlit.tracking.mlflow import MLflowTracker

AXES = {
    "aggregators": Aggregator,
    "data": FederatedDataModule,
    "partitions": Partition,
    "schedules": Schedule,
    "models": LightningModule,
    "trackers": Tracker,
}
"""What can be chosen; ``fedlit list`` shows what ships of each, all of which have short names in a YAML."""

EXPECTED = (ConfigError, CheckpointError, TrainingError, ValueError, FileNotFoundError)
"""Errors that are the user's to mend: shown without a traceback (``FEDLIT_DEBUG=1`` shows it)."""


class Parser(ArgumentParser):
    """Says near names where a name is unknown."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        near = near_names(message)
        super().error(message + (f"\n  did you mean: {near}" if near else ""), ex)


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code: 0, 1 after an error, 128 + n after signal n."""
    # A console script does not have the working directory on its path; one's own aggregators live there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    warnings.filterwarnings("ignore", module=r"(lightning|torchmetrics|jsonargparse).*")
    warnings.showwarning = _show_warning
    args, parser = parse(argv)
    if args.subcommand == "list":
        list_shipped()
        sys.exit(0)
    try:
        sys.exit(execute(args.subcommand, args[args.subcommand], parser))
    except EXPECTED as error:
        if os.environ.get("FEDLIT_DEBUG"):
            raise
        Console(stderr=True).print(f"fedlit: {type(error).__name__}: {error}", style="red", highlight=False,
                                   markup=False, soft_wrap=True)  # fmt: skip
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def parse(argv: list[str] | None = None) -> tuple[Namespace, Parser]:
    """Parse a command line; returns the values and the parser of its subcommand."""
    parser = Parser(prog="fedlit", description=fedlit.__doc__, version=fedlit.__version__)
    commands = parser.add_subcommands(title="commands")
    parsers = {
        "fit": experiment_parser("Train a federation, test its best model, log to MLflow."),
        "test": experiment_parser("Evaluate a checkpoint on the test sets."),
        "predict": experiment_parser("Write a checkpoint's probabilities for every image to CSV files."),
        "list": Parser(description="Show what ships, by the short names that a YAML may use."),
    }
    parsers["predict"].add_argument("--part", type=str, default="test", help="train, val or test of every client")
    parsers["predict"].add_argument("--output", type=Path | None, default=None,
                                    help="folder of the CSV files (default: predictions/ in the run directory)")  # fmt: skip
    for name, subparser in parsers.items():
        commands.add_subcommand(name, subparser, help=subparser.description)
    args = parser.parse_args(argv)
    return args, parsers[args.subcommand]


def experiment_parser(description: str) -> Parser:
    """The options of a federation: the keys of a YAML."""
    parser = Parser(description=description + EPILOG)
    parser.add_argument("-c", "--config", action="config", help="a YAML file; several are merged in order")
    parser.add_argument("--seed", type=int, default=0, help="of initial weights, batches, dropout, augmentation, cohorts")
    parser.add_argument("--experiment", type=str, default="default", help="groups runs, on disk and in MLflow")
    parser.add_argument("--name", type=str | None, default=None, help="of the run (default: date and time)")
    parser.add_argument("--run_dir", type=str, default="runs", help="runs go to <run_dir>/<experiment>/<run>/")
    parser.add_argument("--ckpt_path", type=str | None, default=None,
                        help="resume from, or evaluate: last, best, a run directory or a checkpoint")  # fmt: skip
    parser.add_argument("--fast_dev_run", type=bool, default=False,
                        help="one round of one step and one batch of each evaluation, nothing kept: does it run at all?")  # fmt: skip
    parser.add_argument("--logger", type=bool | Tracker, default=True,
                        help="true: MLflow; false: only files in the run directory; or a class_path with init_args")  # fmt: skip
    parser.add_function_arguments(make_fabric, "fabric")
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True)
    parser.add_subclass_arguments(LightningModule, "model", required=True)
    parser.add_class_arguments(Federation, "federation")
    parser.link_arguments("data.classes", "model.init_args.classes", apply_on="instantiate")
    parser.set_defaults({
        "data": {"class_path": "PhantomCXR"},
        "model": {"class_path": "ImageClassifier"},
        "federation.schedule": {"class_path": "ConstantSchedule"},
    })  # fmt: skip
    return parser


EPILOG = """ Options may come from YAML files (--config), from the command line, or both; the later wins. A class is
given by its short name or class_path, its arguments as init_args: --model.optimizer Adam --model.optimizer.lr 1e-4."""


def execute(command: str, args: Namespace, parser: Parser) -> int:
    """Make the objects of a configuration and run a command on them."""
    config = parser.dump(Namespace({k: v for k, v in args.items() if k != "config"}), skip_none=False, skip_check=True)
    fabric = make_fabric(**args.fabric)
    launch(fabric)
    seed_process(args.seed, "initial weights")
    objects = parser.instantiate_classes(args)
    tracker = objects.logger
    if isinstance(tracker, bool):
        tracker = MLflowTracker() if tracker else Tracker()
    if args.fast_dev_run:
        objects.federation.rounds, objects.federation.schedule = 1, ConstantSchedule(1, "steps")
        tracker, args.run_dir = Tracker(), tempfile.mkdtemp(prefix="fedlit-")
    experiment = Experiment(
        config, yaml.safe_load(config), args.seed, args.experiment, args.name, Path(args.run_dir), args.ckpt_path,
        args.fast_dev_run, fabric, objects.data, objects.model, objects.federation, tracker,
    )  # fmt: skip
    if command == "fit":
        return run_fit(experiment)
    if command == "test":
        return run_test(experiment)
    return run_predict(experiment, args.part, args.output)


def list_shipped() -> None:
    """Print what ships, one line each."""
    console = Console(highlight=False)
    for axis, base in AXES.items():
        console.print(f"[bold]{axis}")
        for cls in shipped(base):
            console.print(f"  {cls.__name__:<18}{(cls.__doc__ or '').strip().splitlines()[0]}", markup=False)


def shipped(base: type) -> list[type]:
    """fedlit's own subclasses of a base class."""
    found = {c for c in _subclasses(base) if c.__module__.startswith("fedlit.")}
    return sorted(found, key=lambda c: c.__name__)


def near_names(message: str) -> str:
    """Shipped names that look like a word of an error message, when that word is no shipped name itself."""
    names = [c.__name__ for base in AXES.values() for c in shipped(base)]
    near: list[str] = []
    for word in re.findall(r"[A-Za-z_][\w]{2,}", message):
        if word not in names:
            near += difflib.get_close_matches(word, names, n=2, cutoff=0.75)
    return ", ".join(dict.fromkeys(near))


def _subclasses(base: type) -> set[type]:
    return {base}.union(*map(_subclasses, base.__subclasses__())) - {Aggregator, FederatedDataModule, Partition}


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    Console(stderr=True).print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)


__all__ = ["ImageClassifier", "main"]
