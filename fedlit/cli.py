"""The command line: ``fedlit fit``, ``test``, ``predict``, ``sweep``, ``reproduce``, ``list``."""

import importlib
import os
import re
import sys
import tempfile
import traceback
import warnings
from argparse import Action
from contextlib import ExitStack
from dataclasses import replace
from inspect import isabstract
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace
from lightning.pytorch import LightningModule
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

import fedlit
from fedlit.aggregators import Aggregator
from fedlit.commands import Experiment, run_fit, run_predict, run_test
from fedlit.data import FederatedDataModule, Partition
from fedlit.errors import CheckpointError, ConfigError, TrainingError
from fedlit.fabric import launch, make_fabric
from fedlit.federation import Federation
from fedlit.mistakes import Sources, explain
from fedlit.models import ImageClassifier
from fedlit.phases import Phase
from fedlit.randomness import seed_process
from fedlit.schedules import ConstantSchedule, Schedule
from fedlit.tracking.base import Tracker
from fedlit.tracking.mlflow import MLflowTracker

AXES: dict[str, tuple[type, str]] = {
    "aggregators": (Aggregator, "fedlit.aggregators"),
    "data": (FederatedDataModule, "fedlit.data"),
    "partitions": (Partition, "fedlit.data"),
    "schedules": (Schedule, "fedlit.schedules"),
    "models": (LightningModule, "fedlit.models"),
    "objectives": (nn.Module, "fedlit.objectives"),
    "trackers": (Tracker, "fedlit.tracking"),
}
"""What can be chosen: the base class, and where those that ship live. All of them have short names in a YAML."""

COMMANDS = {
    "fit": "Train a federation, test its best model, log to MLflow.",
    "test": "Evaluate a checkpoint on the test sets.",
    "predict": "Write a checkpoint's probabilities for every image to CSV files.",
    "sweep": "Run a grid of cases, values and seeds; a call after an interruption goes on with what is left.",
    "reproduce": "Run what a paper's figure or table needs, and write it; a call after an interruption goes on.",
    "list": "Show what ships, by the short names that a YAML may use.",
}

EPILOG = """Options come from YAML files (--config), from the command line, or both; the later wins. A class is given
by its short name or its class_path, its arguments as init_args: --data NIHChestXray14 --data.root FOLDER,
--model.optimizer Adam --model.optimizer.lr 1e-4, --federation.aggregators+=FedProx. `fedlit list` shows the names."""


REPRODUCE = """Names: fdam-fig1 (AUC against the communication window, CODASCA beside CODA+; --root is the folder of
CIFAR-10, at --scale paper that of ImageNet). Every run is a run of `fedlit sweep`: complete in itself, in RUN_DIR and in
MLflow."""

SWEEP = """The YAML of a sweep:

  experiment: rates                       # of the runs, on disk and in MLflow
  config: [../quickstart.yaml]            # what they start from, relative to this file
  set: {federation.rounds: 10}            # optional: keys for all runs, as on the command line of fit
  cases:                                  # optional: named alternatives, each with any keys
    fedavg: {federation.aggregators: [FedAvg]}
    scaffold: {federation.aggregators: [{class_path: Scaffold, init_args: {eta_g: 1.0}}]}
  grid:                                   # optional: runs take every combination
    model.optimizer.lr: [0.1, 0.01]
  seeds: [0, 1, 2]                        # optional: 0 by default
  metric: test/federation/auroc_macro     # optional: what the summary shows

Every configuration is checked before the first run starts. A run is that of `fedlit fit`, in
RUN_DIR/EXPERIMENT/NAME/, with a name such as scaffold,lr=0.1,seed=0; what it prints is in its
console.log. Finished runs are skipped and unfinished ones go on. RUN_DIR/EXPERIMENT/sweep.csv
has a row a run; in MLflow the tag fedlit.group is shared by runs that differ in their seed."""

METRICS = """What a round logs, beside AUROC (val/auroc/CLASS, its macro mean, and per client):
drift/client_drift, mean |delta_k|^2 - |mean delta|^2, the spread of the clients' updates;
drift/alignment, their mean pairwise alignment: 1 all equal, 0 orthogonal, below 0 they cancel;
drift/update_norm, |mean delta|;
drift/c_norm and drift/c_k_norm, norms of the control variates of the server and of the clients, _dual of their dual part;
objective/a, /b, /alpha, /p per class: mean score of positives, of negatives, the dual, the federation's share of positives;
val/auc_loss, the AUC objective at its closed-form a, b, alpha (train/loss of a saddle function is no measure of progress);
round/lr, round/stage: of the schedule; bytes/up, bytes/down: over all clients; time/round_s, time/evaluate_s."""

CHOSEN = "a class (by default {}), an argument of it as .NAME VALUE, or a YAML file with class_path and init_args"


class HelpFormatter(DefaultHelpFormatter):
    """Leaves out base classes, which are no choice, and the marks of docstrings; keeps the lines of a YAML."""

    bases = re.compile(r"(?:[a-z_]+\.)+(?:" + "|".join(base.__name__ for base, _ in AXES.values()) + r")(?:, |(?=\)))")

    def _expand_help(self, action: Action) -> str:
        return self.bases.sub("", super()._expand_help(action)).replace("``", "")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n  " in text else super()._fill_text(text, width, indent)


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
        command = next((word for word in self.sources.argv[:1] if word in COMMANDS), "")
        tip = f"`{' '.join(('fedlit', command)).strip()} --help` describes the options"
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
    if args.subcommand == "list":
        list_shipped(Console(highlight=False))
        sys.exit(0)
    try:
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
    commands = parser.add_subcommands(
        title="commands", metavar="COMMAND", description="each has its own --help", help=None
    )
    federated = ("fit", "test", "predict")
    parsers = {name: experiment_parser(COMMANDS[name]) for name in federated}
    parsers |= {"sweep": sweep_parser(), "reproduce": reproduction_parser()}
    parsers["list"] = Parser(description=COMMANDS["list"])
    parsers["predict"].add_argument("--part", choices=("train", "val", "test"), default="test", help="of every client")
    folder = "folder of the CSV files; by default predictions/ in the run directory"
    parsers["predict"].add_argument("--output", type=Path | None, default=None, help=folder)
    for each in (parser, *parsers.values()):
        each.sources = Sources(tuple(argv))
    for name, subparser in parsers.items():
        commands.add_subcommand(name, subparser, help=COMMANDS[name])
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
    """The whole configuration as YAML, less the files that it came from."""
    return parser.dump(Namespace({k: v for k, v in args.items() if k != "config"}), skip_none=False, skip_check=True)


def reproduction_parser() -> Parser:
    """The options of a reproduction."""
    from fedlit.reports.reproductions.base import Reproduction

    parser = Parser(description=COMMANDS["reproduce"], epilog=REPRODUCE)
    parser.add_argument("what", metavar="NAME", type=str, help="of the figure or table, see below")
    parser.add_class_arguments(Reproduction)
    return parser


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
            return run_test(experiment)
        return run_predict(experiment, args.part, args.output)


def list_shipped(console: Console) -> None:
    """Print what ships, a line each; a terminal gets no more than fits."""
    for axis in AXES:
        console.print(f"[bold]{axis}")
        for cls in shipped(axis):
            summary = (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")
            line = f"  {cls.__name__:<22}{summary}"
            if console.is_terminal:
                console.print(line, markup=False, no_wrap=True, overflow="ellipsis")
            else:
                console.print(line, markup=False, soft_wrap=True)


def shipped(axis: str) -> list[type]:
    """fedlit's own choices on an axis."""
    base, home = AXES[axis]
    exported = vars(importlib.import_module(home))
    bases = [b for b, _ in AXES.values()]
    found = {c for c in _subclasses(base) if exported.get(c.__name__) is c and c not in bases and not isabstract(c)}
    return sorted(found, key=lambda c: c.__name__)


def short_names() -> list[str]:
    """Every name that a YAML may use for a class."""
    ours = [cls.__name__ for axis in AXES for cls in shipped(axis)]
    return ours + sorted(cls.__name__ for cls in _subclasses(Optimizer) if cls.__module__.startswith("torch.optim"))


def complain(text: str) -> None:
    """Tell the user what is wrong."""
    Console(stderr=True).print(f"fedlit: error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)


def _asked_by(error: Exception) -> str:
    """The line of a module that asked for its Trainer, which the error itself does not name."""
    if not isinstance(error, AttributeError):
        return ""
    asked = traceback.extract_tb(error.__traceback__)[-2]
    return f" ({asked.filename}, line {asked.lineno})"


def _subclasses(base: type) -> set[type]:
    return {base}.union(*map(_subclasses, base.__subclasses__()))


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    Console(stderr=True).print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)


__all__ = ["ImageClassifier", "main"]
