"""The options of an experiment: the keys of its YAML, the configuration with values of the environment, its objects."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import restricted_string_type
from lightning.pytorch import LightningModule

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import launch, make_fabric
from fedlit.core.parts import class_names
from fedlit.core.randomness import seed_process
from fedlit.core.system.environment import REFERENCE, from_environment, resolve
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.choices import AXES, shipped, short_names
from fedlit.experiment.experiment import Experiment, ready
from fedlit.experiment.helptexts import CHOSEN, EPILOG, metrics_help
from fedlit.experiment.mistakes import Sources
from fedlit.experiment.naming import check_names
from fedlit.experiment.parser import Parser
from fedlit.experiment.phases import Phase
from fedlit.federation.callbacks import Callback
from fedlit.federation.federation import Federation
from fedlit.tracking.addresses import lacks_credentials, masked, without_credentials
from fedlit.tracking.loggers import LoggerSetting
from fedlit.tracking.names import DEFAULT_EXPERIMENT, better

DEFAULT_CLASSES = ("--data", "PhantomCXR", "--model", "ImageClassifier", "--federation.schedule", "ConstantSchedule")
"""Default classes, as the first words of every command line. Defaults of the parser would pass their own defaults, such
as an image size, on to any other class that the user chooses."""

TITLES = {
    "data": "The data, split by patient and divided among clients",
    "model": "The model that every client trains: any LightningModule",
    "federation": "The federation: algorithms, rounds, clients, evaluation and checkpoints",
    "fabric": "The devices of this machine and the precision (Lightning Fabric)",
}
"""Titles of the sections in ``--help``."""

SeedList = restricted_string_type("SeedList", r"^-?\d+(,-?\d+)+$", docstring="Several seeds, such as 0,1,2.")


def experiment_parser(description: str = "") -> Parser:
    """Make the options of a federation: the keys of a YAML."""
    for axis in AXES:
        shipped(axis)  # importing a class registers its short name
    parser = Parser(description=f"{description} {EPILOG}", epilog=metrics_help())
    parser.first_words, parser.short_names = DEFAULT_CLASSES, short_names
    files = "YAML file. Several are merged; later ones override earlier ones."
    parser.add_argument("-c", "--config", action="config", help=files)
    seed = (
        "Seed of initial weights, batches, dropout, augmentation and cohorts. `fedlit fit` accepts several, such as "
        "0,1,2, and starts one run for each with its own draw of the data: the run of seed 1 equals `--seed 1 "
        "--data.seed 1`."
    )
    parser.add_argument("--seed", type=int | list[int] | SeedList, default=0, help=seed)
    group = "Name of a group of runs, on disk and in MLflow."
    name = "Name of the run. By default its method, seed, date and time."
    parser.add_argument("--experiment", type=str, default=DEFAULT_EXPERIMENT, help=group)
    parser.add_argument("--name", type=str | None, default=None, help=name)
    parser.add_argument("--tags", type=dict[str, str], default={}, help="Tags of the run in MLflow: --tags.NAME VALUE.")
    parser.add_argument("--run_dir", type=str, default="runs", help="Folder of all runs: RUN_DIR/EXPERIMENT/NAME/.")
    path = (
        "Checkpoint to continue or to evaluate: a file, a run directory, or last or best for the newest run of the "
        "experiment (with --name, for the newest run of that name)."
    )
    parser.add_argument("--ckpt_path", type=str | None, default=None, help=path)
    trial = "Try the configuration with one round of one step, without keeping any results."
    parser.add_argument("--fast_dev_run", type=bool, default=False, help=trial)
    figures = "Draw the partition and the ROC curves of each run."
    parser.add_argument("--figures", type=bool, default=True, help=figures)
    logger = (
        "Logger of metrics: true is MLflow, false is only the run directory, a class is a tracker or a logger of "
        "lightning.pytorch.loggers, and a list names several."
    )
    parser.add_argument("--logger", type=LoggerSetting, default=True, help=logger)
    phases = "Phases that run before the main part of the federation, in order. See --phases.help."
    parser.add_argument("--phases", type=list[Phase], default=[], help=phases)
    of_phase = "Name of the phase that this run is, as in the config.yaml of a phase; its rounds have their own seed."
    parser.add_argument("--phase", type=str | None, default=None, help=of_phase)
    following = "Your own callbacks: subclasses of fedlit.federation.callbacks.Callback, each by class_path."
    parser.add_argument("--callbacks", type=list[Callback] | None, default=None, help=following)
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, help=CHOSEN.format("PhantomCXR"))
    parser.add_subclass_arguments(LightningModule, "model", required=True, help=CHOSEN.format("ImageClassifier"))
    parser.add_class_arguments(Federation, "federation")
    parser.add_function_arguments(make_fabric, "fabric")
    for section, title in TITLES.items():
        parser.groups[section].title = title
    parser.link_arguments("data", "model.init_args.classes", classes_of, apply_on="instantiate")
    return parser


def classes_of(data: FederatedDataModule) -> tuple[str, ...]:
    """Return the class names of a data module, which a model gets."""
    return class_names(f"{type(data).__name__}.classes", data.classes)


def check_classes(model: LightningModule, data: FederatedDataModule) -> None:
    """Refuse data that name no classes if the model takes some."""
    if "classes" in signature(type(model).__init__).parameters and not data.classes:
        name = type(data).__name__
        raise ConfigError(
            f"{name}.classes: expected class names, which {type(model).__name__} needs, found none; set self.classes = "
            f"(...) in {name}.__init__ after super().__init__(), or make it a property (setup() is called after the "
            "model is made)"
        )


OF_A_CLUSTER = ("on", "status", "cancel", "print_jobs")
"""Options of commands that start many runs."""


def resolved(args: Namespace, parser: Parser) -> str:
    """Return the whole configuration as YAML, without the names of its files and the options of single commands."""
    others = ("config", "part", "client", "output", "format", "jobs", "sites", "fresh_state", *OF_A_CLUSTER)
    settled = args.clone()
    # Resolved, so that a default and the same value from the user give the same configuration.
    for part in (settled.federation, *settled.phases):
        if part.monitor_mode == "auto":
            part.monitor_mode = better(part.monitor or "auto") or "auto"  # an empty monitor is refused later
    shown = Namespace({key: value for key, value in settled.items() if key not in others})
    return parser.dump(shown, skip_none=False, skip_validation=True)


def seeds_of(args: Namespace) -> list[int]:
    """Return the seeds of a configuration, in most cases one."""
    return [int(number) for number in re.findall(r"-?\d+", str(args.seed))]


def one_draw(sources: Sources, settings: Mapping[str, Any] = {}) -> bool:
    """Return whether ``data.seed`` is set, in files or settings, so that all seeds share one draw of the data."""
    keys, data = ("data.seed", "data.init_args.seed"), settings.get("data")
    nested = isinstance(data, Mapping) and "seed" in (data.get("init_args") or {})
    return nested or any(key in settings or sources.where(key) for key in keys)


def of_seed(data: Any, seed: int) -> Any:
    """Return the configuration of the data with a run's seed added to every seed in it.

    Raises:
        ConfigError: The seed is negative.
    """
    if isinstance(data, dict):
        moved = {k: v + seed if k == "seed" and type(v) is int else of_seed(v, seed) for k, v in data.items()}
        if seed < 0 and "seed" in moved:
            raise ConfigError(
                f"seed: expected at least 0, from which data can be drawn, found {seed}; or set data.seed for all seeds"
            )
        return moved
    return [of_seed(each, seed) for each in data] if isinstance(data, list) else data


@contextmanager
def composed(args: Namespace, parser: Parser, tracked: bool = False) -> Iterator[Experiment]:
    """Context manager that makes the objects of a configuration; ``tracked`` if the command makes a run.

    Raises:
        ConfigError: There are several seeds, a name cannot be that of a folder, or credentials are missing.
    """
    seeds = seeds_of(args)
    if not seeds:
        raise ConfigError("seed: expected a number, found none")
    if parser.sources.where("model.classes"):
        raise ConfigError(
            "model.classes: expected nothing, as a model has the classes of its data; leave it out, or set data.classes"
        )
    if len(seeds) != 1:
        raise ConfigError(
            f"seed: expected the seed of one run, found {', '.join(map(str, seeds))}; give only the seed of the run of "
            "--ckpt_path"
        )
    args.seed = seeds[0]
    if tracked:  # other commands only read runs, which may have names of an earlier version
        check_names(args)
    config = resolved(args, parser)
    if not tracked or args.fast_dev_run:
        args.logger = False
    made_of = opened(args)
    fabric = make_fabric(**made_of.fabric)
    launch(fabric)
    seed_process(args.seed, "initial weights")
    objects = parser.instantiate(made_of)
    check_classes(objects.model, objects.data)
    made = {name: objects[name] for name in ("data", "model", "federation")}
    with ready(Experiment.of(config, objects, fabric=fabric, **made)) as experiment:
        yield experiment


AS_WRITTEN = ("config", "tags")
"""Keys whose values are only written down."""

FOLDERS = ("run_dir", "ckpt_path")
"""Keys that files and the terminal name, so that nothing of the environment may be in them."""


def opened(args: Namespace, several: bool = False) -> Namespace:
    """Return a copy of a configuration with what the environment holds; ``several`` runs read it from files.

    Raises:
        ConfigError: A variable or a password is missing; names the key.
    """

    def open_text(key: str, text: str) -> str:
        shown = without_credentials(text)
        if lacks_credentials(text):
            web = f", or write {shown} and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise ConfigError(
                f"{key}: expected the password for {shown}, found none, because no file contains passwords; write "
                f"${{env:NAME}} in its place and set NAME in the environment, or pass the address with --{key}"
                + (web if shown.startswith("http") else "")
            )
        if several and masked(text) != text:
            raise ConfigError(
                f"{key}: expected ${{env:NAME}} in place of the password for {shown}, found the password itself, but "
                "several runs read their configuration from files, which contain none; set NAME in the environment"
            )
        return from_environment(key, text)

    for key in FOLDERS:
        if REFERENCE.search(str(args.get(key))):
            raise ConfigError(
                f"{key}: expected the name of a folder, found {args[key]}, which would tell a value of the environment;"
                f" write the folder, or --{key} $NAME on the command line"
            )
    values = {key: value if key in AS_WRITTEN else resolve(value, key, open_text) for key, value in vars(args).items()}
    return Namespace(**values)
