"""The command line: ``fedlit fit``, ``test``, ``predict``, ``export``, ``sweep``, ``reproduce``, ``data``, ``list``."""

import os
import sys
import tempfile
import traceback
import warnings
from argparse import ArgumentError
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import LightningModule
from rich.console import Console

import fedlit
from fedlit.choices import AXES, list_labels, list_shipped, shipped, short_names
from fedlit.commands import Experiment, run_export, run_fit, run_predict, run_test
from fedlit.data import FederatedDataModule
from fedlit.data.check import check, compare, readers, recognise
from fedlit.data.check_report import report, report_console, report_problems
from fedlit.data.xrays import ChestXrays
from fedlit.errors import CheckpointError, ConfigError, TrainingError
from fedlit.fabric import launch, make_fabric
from fedlit.federation import Federation
from fedlit.helptexts import CHECK, CHOSEN, EPILOG, METRICS, REPRODUCE, SWEEP, HelpFormatter
from fedlit.mistakes import Sources, explain
from fedlit.models import ImageClassifier
from fedlit.phases import Phase
from fedlit.randomness import seed_process
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import Tracker
from fedlit.tracking.mlflow import MLflowTracker

COMMANDS = {
    "fit": "Train a federation, test its best model, log to MLflow.",
    "test": "Evaluate a checkpoint on the test sets.",
    "predict": "Write a checkpoint's probabilities for every image to Parquet or CSV files.",
    "export": "Write a checkpoint's model to one .safetensors file, to be used elsewhere.",
    "sweep": "Run a grid of cases, values and seeds; a call after an interruption goes on with what is left.",
    "reproduce": "Run what a paper's figure or table needs, and write it; a call after an interruption goes on.",
    "data": "Look at data before training on it.",
    "list": "Show what ships, by the short names that a YAML may use, or the harmonised labels.",
}

SUBCOMMANDS = {"title": "commands", "metavar": "COMMAND", "description": "each has its own --help", "help": None}


class Parser(ArgumentParser):
    """Explains mistakes instead of printing its usage.

    Attributes:
        sources: where the values came from.
    """

    sources = Sources(())

    def __init__(self, *args: Any, **options: Any) -> None:
        # An abbreviated option is a mistake: --federation.round 3 would be taken for --federation.rounds.
        super().__init__(*args, **{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a parser within the parser, whose error becomes a part of ours
            super().error(message, ex)
        options = {
            action.dest
            for parser in (self, getattr(ex, "subcommand_parser", None))
            if parser
            for action in parser._actions
        }
        command = [word for word in self.sources.argv[:2] if word in (*COMMANDS, "check")]
        tip = f"`{' '.join(('fedlit', *command))} --help` describes the options"
        complain(explain(message, self.sources, options, short_names()) + "\n" + tip)
        sys.exit(2)


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code.

    0 when all went well, 1 after an error, 2 after a mistake on the command line or in a YAML file, 128 + n after
    signal n.
    """
    # A console script does not have the working directory on its path; one's own aggregators live there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    warnings.filterwarnings("ignore", module=r"(lightning|torchmetrics|jsonargparse).*")
    warnings.showwarning = _show_warning
    args, parser = parse(sys.argv[1:] if argv is None else argv)
    try:
        if args.subcommand == "list":
            sys.exit(execute_list(args.list))
        if args.subcommand == "data":
            sys.exit(execute_check(args.data.check))
        if args.subcommand == "sweep":
            sys.exit(execute_sweep(args.sweep))
        if args.subcommand == "reproduce":
            sys.exit(execute_reproduction(args.reproduce))
        sys.exit(execute(args.subcommand, args[args.subcommand], parser))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("FEDLIT_DEBUG") or not is_mistake(error):
            raise
        complain(explain(str(error), parser.sources) + _asked_by(error))
        sys.exit(1)


DELIBERATE: dict[type[Exception], tuple[str, ...]] = {
    ConfigError: ("",),
    CheckpointError: ("",),
    TrainingError: ("",),
    ValueError: ("fedlit.", "jsonargparse."),
    OSError: ("fedlit.",),
    NotImplementedError: ("fedlit.",),
    RuntimeError: ("fedlit.engines.pool",),  # the text holds a worker's own traceback
    AttributeError: ("lightning.pytorch.core.module",),  # a module asks for its Trainer
}
"""Errors that say what the user can do, by the modules that raise them so."""


def is_mistake(error: Exception) -> bool:
    """Whether an error is the user's to mend and says how; any other is shown with its traceback."""
    module = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return any(isinstance(error, kind) and module.startswith(homes) for kind, homes in DELIBERATE.items())


def parse(argv: list[str]) -> tuple[Namespace, Parser]:
    """Parse a command line; returns the values and the parser of its command."""
    parser = Parser(prog="fedlit", description=fedlit.__doc__, version=fedlit.__version__)
    commands = parser.add_subcommands(**SUBCOMMANDS)
    federated = ("fit", "test", "predict", "export")
    parsers = {name: experiment_parser(COMMANDS[name]) for name in federated}
    parsers |= {"sweep": sweep_parser(), "reproduce": reproduction_parser()}
    parsers |= {"data": Parser(description=COMMANDS["data"]), "list": list_parser()}
    parsers["predict"].add_argument("--part", choices=("train", "val", "test"), default="test", help="of every client")
    folder = "folder of the files, one a set; by default probabilities/ in the run directory"
    parsers["predict"].add_argument("--output", type=Path | None, default=None, help=folder)
    parsers["predict"].add_argument("--format", choices=("parquet", "csv"), default="parquet", help="of the files")
    kept = (
        "folder of the predictions; by default, for a run's best model as it was tested, predictions/ in its directory"
    )
    parsers["test"].add_argument("--output", type=Path | None, default=None, help=kept)
    whose = "whose own model, where clients keep a part of it; by default the federation's"
    parsers["export"].add_argument("--client", type=str | None, default=None, help=whose)
    file = "the file; by default model.safetensors or model-CLIENT.safetensors in the run directory"
    parsers["export"].add_argument("--output", type=Path | None, default=None, help=file)
    for name, subparser in parsers.items():
        commands.add_subcommand(name, subparser, help=COMMANDS[name])
    checks = check_parser()
    parsers["data"].add_subcommands(**SUBCOMMANDS).add_subcommand("check", checks, help=checks.description)
    for each in (parser, *parsers.values(), checks):
        each.sources = Sources(tuple(argv))
    chosen = DEFAULT_CLASSES if argv[:1] and argv[0] in federated else ()
    args = parser.parse_args([*argv[:1], *chosen, *argv[1:]])
    return args, parsers[args.subcommand]


DEFAULT_CLASSES = ("--data", "PhantomCXR", "--model", "ImageClassifier", "--federation.schedule", "ConstantSchedule")
"""First words of every command line. As defaults of the parser, their own defaults (an image size, a batch size) would
stay for whichever class is chosen in their place."""


def experiment_parser(description: str) -> Parser:
    """The options of a federation: the keys of a YAML."""
    parser = Parser(description=f"{description} {EPILOG}", epilog=METRICS)
    parser.add_argument("-c", "--config", action="config", help="a YAML file; several are merged in order")
    parser.add_argument(
        "--seed", type=int, default=0, help="of initial weights, batches, dropout, augmentation, cohorts"
    )
    parser.add_argument("--experiment", type=str, default="default", help="groups runs, on disk and in MLflow")
    parser.add_argument("--name", type=str | None, default=None, help="of the run; by default date and time")
    parser.add_argument("--tags", type=dict[str, str], default={}, help="of the run in MLflow: --tags.NAME VALUE")
    parser.add_argument("--run_dir", type=str, default="runs", help="runs go to RUN_DIR/EXPERIMENT/NAME/")
    parser.add_argument(
        "--ckpt_path",
        type=str | None,
        default=None,
        help="resume from, or evaluate: last, best, a run directory or a checkpoint",
    )
    parser.add_argument(
        "--fast_dev_run", type=bool, default=False, help="one round of one step, nothing kept: does it run at all?"
    )
    parser.add_argument(
        "--logger",
        type=bool | Tracker,
        default=True,
        help="true: MLflow; false: only files in the run directory; or a class",
    )
    parser.add_argument(
        "--phases", type=list[Phase], default=[], help="run before the federation's main part, in order; see Phase"
    )
    parser.add_function_arguments(make_fabric, "fabric")
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, help=CHOSEN.format("PhantomCXR"))
    parser.add_subclass_arguments(LightningModule, "model", required=True, help=CHOSEN.format("ImageClassifier"))
    parser.groups["model"].title = "The model that every client trains: any LightningModule"
    parser.add_class_arguments(Federation, "federation")
    parser.link_arguments("data.classes", "model.init_args.classes", apply_on="instantiate")
    return parser


def sweep_parser() -> Parser:
    """The options of a sweep."""
    parser = Parser(description=COMMANDS["sweep"], epilog=SWEEP)
    parser.add_argument("-c", "--config", type=str, required=True, help="the YAML of the sweep, see below")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, each with its federation.workers")
    parser.add_argument("--dry_run", type=bool, default=False, help="check the configurations, list the runs, and end")
    parser.add_argument("--run_dir", type=str | None, default=None, help="runs go to RUN_DIR/EXPERIMENT/NAME/")
    given = "keys for all runs, over the YAML's own: --set '{data.root: FOLDER}'"
    parser.add_argument("--set", type=dict[str, Any], default={}, help=given)
    return parser


def resolved(args: Namespace, parser: Parser) -> str:
    """The whole configuration as YAML, less the files that it came from and what one command alone takes."""
    others = ("config", "part", "client", "output", "format")
    return parser.dump(Namespace({k: v for k, v in args.items() if k not in others}), skip_none=False, skip_check=True)


def reproduction_parser() -> Parser:
    """The options of a reproduction."""
    from fedlit.reports.reproductions.base import Reproduction

    parser = Parser(description=COMMANDS["reproduce"], epilog=REPRODUCE)
    parser.add_argument("what", metavar="NAME", type=str, help="of the figure or table, see below")
    parser.add_class_arguments(Reproduction)
    return parser


def check_parser() -> Parser:
    """The options of a look at data."""
    description = "Say what folders of chest X-rays hold, and what is wrong with them, with file and line."
    parser = Parser(description=description, epilog=CHECK)
    parser.add_argument("roots", metavar="ROOT", nargs="+", type=str, help="folder of a download; several are compared")
    named = "the data set, where a folder does not show it"
    parser.add_argument("--source", choices=tuple(readers()), default=None, help=named)
    parser.add_argument("--decode", action="store_true", help="decode every image, see below")
    given = "arguments of the data set, as data.init_args: --set '{official_split: false}'"
    parser.add_argument("--set", type=dict[str, Any], default={}, help=given)
    return parser


def list_parser() -> Parser:
    """The options of a list."""
    parser = Parser(description=COMMANDS["list"])
    parser.add_argument(
        "what", nargs="?", default=None, type=str | None, help="`labels`: what data sets call a finding"
    )
    return parser


def execute_list(args: Namespace) -> int:
    """Print what ships, or the harmonised labels; returns the exit code."""
    if args.what not in (None, "labels"):
        complain(f"list: expected nothing or labels, found {args.what!r}")
        return 2
    if args.what == "labels":
        list_labels(report_console())
    else:
        list_shipped(Console(highlight=False))
    return 0


def execute_check(args: Namespace) -> int:
    """Look at folders of chest X-rays and compare them; returns the exit code."""
    console = report_console()
    try:
        roots = [Path(root).expanduser() for root in args.roots]
        opened = [_open(recognise(root, args.source), root, args.set) for root in roots]
        checks = []
        for reader in opened:
            checks.append(check(reader, args.decode))
            report(checks[-1], console)
    except ConfigError as error:
        complain(str(error))
        return 2
    shared = compare(checks)
    report_problems(shared, console)
    return 1 if shared or any(found.problems for found in checks) else 0


def _open(kind: type[ChestXrays], root: Path, options: dict[str, Any]) -> ChestXrays:
    """The reader of a folder, made as that of a YAML would be."""
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(kind)
    try:
        return kind(**parser.instantiate(parser.parse_object({**options, "root": str(root)})).as_dict())
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"--set: {explain(str(error), Sources(()), parser.get_defaults().as_dict())}") from error


def execute_reproduction(args: Namespace) -> int:
    """Run a reproduction; returns the exit code."""
    from fedlit.reports.reproductions import REPRODUCTIONS

    options = dict(args.items())
    name = options.pop("what")
    options.pop("config", None)
    if name not in REPRODUCTIONS:
        raise ConfigError(f"reproduce: there is no {name!r}; there are {', '.join(REPRODUCTIONS)}")
    REPRODUCTIONS[name](**options).run(Console(highlight=False, markup=False, soft_wrap=True))
    return 0


def execute_sweep(args: Namespace) -> int:
    """Run a sweep, or list its runs; returns the exit code."""
    from fedlit.sweep import load_sweep, plan, run_sweep, summary  # which parses its runs by this module

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
    console.print(f"a row a run: {sweep.directory / 'sweep.csv'}")
    return 0 if (table["status"] == "finished").all() else 1


def execute(command: str, args: Namespace, parser: Parser) -> int:
    """Make the objects of a configuration and run a command on them; returns the exit code."""
    config = resolved(args, parser)
    fabric = make_fabric(**args.fabric)
    launch(fabric)
    seed_process(args.seed, "initial weights")
    objects = parser.instantiate(args)
    tracker = objects.logger
    if isinstance(tracker, bool):
        tracker = MLflowTracker() if tracker else Tracker()
    with ExitStack() as leftovers:
        if args.fast_dev_run:
            objects.federation.rounds, objects.federation.schedule = 1, ConstantSchedule(1, "steps")
            tracker, args.run_dir = Tracker(), leftovers.enter_context(tempfile.TemporaryDirectory(prefix="fedlit-"))
        experiment = Experiment(
            config,
            yaml.safe_load(config),
            args.seed,
            args.experiment,
            args.name,
            Path(args.run_dir),
            args.ckpt_path,
            args.fast_dev_run,
            fabric,
            objects.data,
            objects.model,
            objects.federation,
            tracker,
            args.tags,
            objects.phases,
        )
        if command == "fit":
            return run_fit(experiment)
        if command == "test":
            return run_test(experiment, args.output)
        if command == "export":
            return run_export(experiment, args.client, args.output)
        return run_predict(experiment, args.part, args.output, args.format)


def complain(text: str) -> None:
    """Tell the user what is wrong."""
    Console(stderr=True).print(f"fedlit: error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)


def _asked_by(error: Exception) -> str:
    """The line of a module that asked for its Trainer, which the error itself does not name."""
    if not isinstance(error, AttributeError):
        return ""
    asked = traceback.extract_tb(error.__traceback__)[-2]
    return f" ({asked.filename}, line {asked.lineno})"


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    Console(stderr=True).print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)


__all__ = ["AXES", "ImageClassifier", "main", "shipped"]
