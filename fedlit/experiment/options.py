"""The options of an experiment: the keys of its YAML, and what they say once they are resolved."""

import re
from inspect import signature

from jsonargparse import Namespace
from jsonargparse.typing import restricted_string_type
from lightning.pytorch import LightningModule

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.core.parts import class_names
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.choices import AXES, shipped, short_names
from fedlit.experiment.helptexts import CHOSEN, EPILOG, metrics_help
from fedlit.experiment.parser import Parser
from fedlit.experiment.phases import Phase
from fedlit.federation.callbacks import Callback
from fedlit.federation.federation import Federation
from fedlit.metrics.direction import better
from fedlit.tracking.loggers import LoggerSetting

DEFAULT_CLASSES = ("--data", "PhantomCXR", "--model", "ImageClassifier", "--federation.schedule", "ConstantSchedule")
"""First words of every command line. As defaults of the parser, their own defaults (an image size, a batch size) would
stay for whichever class is chosen in their place."""

SeedList = restricted_string_type("SeedList", r"^-?\d+(,-?\d+)+$", docstring="Several seeds, as in 0,1,2.")


def experiment_parser(description: str = "") -> Parser:
    """Make the options of a federation: the keys of a YAML."""
    for axis in AXES:
        shipped(axis)  # a class is known by its short name once it is imported
    parser = Parser(description=f"{description} {EPILOG}", epilog=metrics_help())
    parser.first_words, parser.short_names = DEFAULT_CLASSES, short_names
    parser.add_argument("-c", "--config", action="config", help="YAML file; several are merged in their order.")
    seed = (
        "Seed of initial weights, batches, dropout, augmentation and cohorts. `fedlit fit` takes several, as in 0,1,2, "
        "and starts a run for each, with its own draw of the data: seed 1 of them is `--seed 1 --data.seed 1`."
    )
    parser.add_argument("--seed", type=int | list[int] | SeedList, default=0, help=seed)
    parser.add_argument("--experiment", type=str, default="default", help="Groups runs, on disk and in MLflow.")
    parser.add_argument(
        "--name", type=str | None, default=None, help="Name of the run, by default its method, seed, date and time."
    )
    parser.add_argument("--tags", type=dict[str, str], default={}, help="Tags of the run in MLflow: --tags.NAME VALUE.")
    parser.add_argument("--run_dir", type=str, default="runs", help="Folder of all runs: RUN_DIR/EXPERIMENT/NAME/.")
    path = (
        "What to continue or to evaluate: a run directory, a checkpoint, or last or best of the newest run of the experiment; "
        "with --name, of the newest run of that name."
    )
    parser.add_argument("--ckpt_path", type=str | None, default=None, help=path)
    trial = "Try the configuration with one round of one step. Nothing is kept."
    parser.add_argument("--fast_dev_run", type=bool, default=False, help=trial)
    logger = (
        "Where metrics go: true is MLflow, false is the run directory alone, a class is a tracker or a logger of "
        "lightning.pytorch.loggers, and a list has several of them."
    )
    parser.add_argument("--logger", type=LoggerSetting, default=True, help=logger)
    phases = "Phases that run before the main part of the federation, in their order. See Phase."
    parser.add_argument("--phases", type=list[Phase], default=[], help=phases)
    following = "Classes that follow the rounds, each a Callback of fedlit.federation.callbacks, by class_path."
    parser.add_argument("--callbacks", type=list[Callback] | None, default=None, help=following)
    parser.add_function_arguments(make_fabric, "fabric")
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, help=CHOSEN.format("PhantomCXR"))
    parser.add_subclass_arguments(LightningModule, "model", required=True, help=CHOSEN.format("ImageClassifier"))
    parser.groups["model"].title = "The model that every client trains: any LightningModule"
    parser.add_class_arguments(Federation, "federation")
    parser.link_arguments("data", "model.init_args.classes", _classes_of, apply_on="instantiate")
    return parser


def _classes_of(data: FederatedDataModule) -> tuple[str, ...]:
    return class_names(f"{type(data).__name__}.classes", data.classes)


def check_classes(model: LightningModule, data: FederatedDataModule) -> None:
    """Refuse data without classes for a model that takes some.

    Raises:
        ConfigError: Says where the data name them.
    """
    if "classes" in signature(type(model).__init__).parameters and not data.classes:
        name = type(data).__name__
        raise ConfigError(
            f"{name} names no classes, and {type(model).__name__} takes some: set self.classes = (...) in "
            f"{name}.__init__ behind super().__init__(), or make it a property; setup() is too late, as the model is "
            "made before it"
        )


def resolved(args: Namespace, parser: Parser) -> str:
    """Return the whole configuration as YAML, less the files that it came from and what one command alone takes."""
    others = ("config", "part", "client", "output", "format", "jobs", "sites", "fresh_state")
    settled = args.clone()
    # As its value, so that a run is the same whether the default or the user has chosen it.
    for part in (settled.federation, *settled.phases):
        if part.monitor_mode == "auto":
            part.monitor_mode = better(part.monitor) or "auto"
    return parser.dump(
        Namespace({k: v for k, v in settled.items() if k not in others}), skip_none=False, skip_check=True
    )


def seeds_of(args: Namespace) -> list[int]:
    """Return the seeds of a configuration; most have one."""
    return [int(number) for number in re.findall(r"-?\d+", str(args.seed))]
