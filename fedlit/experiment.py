"""A configuration as options of the command line, and as the objects that it describes."""

import copy
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from jsonargparse import Namespace
from jsonargparse.typing import restricted_string_type
from lightning.pytorch import LightningModule
from rich.console import Console

from fedlit import __version__
from fedlit.aggregators.base import composed_name
from fedlit.choices import AXES, shipped
from fedlit.data.federated import FederatedDataModule
from fedlit.errors import CheckpointError, ConfigError
from fedlit.fabric import FederationFabric, launch, make_fabric
from fedlit.federation import Federation
from fedlit.grouping import group_name, method_name, short_parameters
from fedlit.helptexts import CHOSEN, EPILOG, METRICS
from fedlit.parser import Parser
from fedlit.personal import PersonalParts
from fedlit.phases import Phase
from fedlit.randomness import derive_seed, seed_process
from fedlit.run import find_checkpoint, flatten, git_revision
from fedlit.schedules import ConstantSchedule
from fedlit.session import Session
from fedlit.tracking.base import Tracker
from fedlit.tracking.mlflow import MLflowTracker

DEFAULT_CLASSES = ("--data", "PhantomCXR", "--model", "ImageClassifier", "--federation.schedule", "ConstantSchedule")
"""First words of every command line. As defaults of the parser, their own defaults (an image size, a batch size) would
stay for whichever class is chosen in their place."""

SeedList = restricted_string_type("SeedList", r"^-?\d+(,-?\d+)+$", docstring="Several seeds: 0,1,2")


def experiment_parser(description: str = "") -> Parser:
    """The options of a federation: the keys of a YAML."""
    for axis in AXES:
        shipped(axis)  # a class is known by its short name once it is imported
    parser = Parser(description=f"{description} {EPILOG}", epilog=METRICS)
    parser.add_argument("-c", "--config", action="config", help="a YAML file; several are merged in order")
    drawn = "of initial weights, batches, dropout, augmentation, cohorts; fit takes several, 0,1,2, a run each"
    parser.add_argument("--seed", type=int | list[int] | SeedList, default=0, help=drawn)
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


def resolved(args: Namespace, parser: Parser) -> str:
    """The whole configuration as YAML, less the files that it came from and what one command alone takes."""
    others = ("config", "part", "client", "output", "format", "jobs")
    return parser.dump(Namespace({k: v for k, v in args.items() if k not in others}), skip_none=False, skip_check=True)


def seeds_of(args: Namespace) -> list[int]:
    """The seeds of a configuration, of which most have one."""
    return [int(number) for number in re.findall(r"-?\d+", str(args.seed))]


@dataclass
class Experiment:
    """The objects of one configuration.

    Attributes:
        config: the resolved configuration, as YAML; saved with the run.
        settings: the same as nested mappings, for the tracker's parameters.
        tags: of the run in MLflow.
        phases: run before the federation's main part, in order.
    """

    config: str
    settings: dict
    seed: int
    experiment: str
    name: str | None
    run_dir: Path
    ckpt_path: str | None
    fast_dev_run: bool
    fabric: FederationFabric
    data: FederatedDataModule
    model: LightningModule
    federation: Federation
    tracker: Tracker
    tags: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)

    def session(self, run: Path | None = None) -> Session:
        """The main part, from where a run's phases have brought the model."""
        model, parts = self._after(self.phases, run)
        return Session(self.federation, model, self.data, self.fabric, self.seed, self._tags, self._limit, parts)

    def phase_session(self, phase: Phase, run: Path | None = None) -> Session:
        """A phase, from where a run's earlier ones have brought the model."""
        model, parts = self._after(self.phases[: self.phases.index(phase)], run)
        model = phase.model(model)
        federation = phase.federation(self.federation)
        if self.fast_dev_run:
            federation.rounds, federation.schedule = 1, ConstantSchedule(1, "steps")
        seed, tags = derive_seed(self.seed, "phase", phase.name), {"fedlit.phases": str(len(self.phases))}
        return Session(federation, model, self.data, self.fabric, seed, self._tags | tags, self._limit, parts)

    def pending(self, run: Path | None) -> list[Phase]:
        """Phases that have rounds ahead of them.

        Raises:
            ConfigError: two have the same name.
        """
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ConfigError(f"phases: expected different names, found {names}")
        return [p for p in self.phases if run is None or not p.finished(run, self.federation)]

    def first_session(self, run: Path | None) -> Session:
        """Of what comes first, once the main part is known to fit together as well."""
        pending = self.pending(run)
        if not pending:
            return self.session(run)
        if getattr(self.model, "fixed_features", None) is None:  # features of what a phase will change are not worth it
            main = replace(self, model=copy.deepcopy(self.model)).session()  # its algorithms change the model
            self.federation.chosen_monitor(main.rehearse(main.restore(None)[0]))
            main.engine.close()
        return self.phase_session(pending[0], run)

    def _after(self, phases: Sequence[Phase], run: Path | None) -> tuple[LightningModule, PersonalParts | None]:
        """The model as a run's phases have left it, and what clients kept to themselves in the last of them."""
        if run is None or not phases:
            return self.model, None
        model = copy.deepcopy(self.model)
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        for phase in phases:
            parts = phase.personal_parts(run, model, self.fabric)
            phase.hand_on(run, model, fresh)
        return model, parts

    @property
    def _tags(self) -> dict[str, str]:
        method = method_name(self.federation, self.model)
        own = {"fedlit.method": method, "fedlit.group": group_name(self.settings, method)}
        own |= {"fedlit.algorithm": composed_name(self.federation.aggregators), "fedlit.seed": str(self.seed)}
        return own | self.tags | {"fedlit.version": __version__, "fedlit.git": git_revision() or "none"}

    @property
    def parameters(self) -> dict[str, str | int | float | bool]:
        """Its configuration for the tracker, with short names beside for what people chart."""
        return parameters(self.settings) | short_parameters(self.federation, self.model)

    @property
    def _limit(self) -> int | None:
        return 1 if self.fast_dev_run else None

    def checkpoint(self) -> Path | None:
        """The checkpoint that ``ckpt_path`` names, the same on every rank."""
        found = find_checkpoint(self.run_dir, self.experiment, self.ckpt_path) if self.ckpt_path else None
        return self.fabric.broadcast(found)

    def required_checkpoint(self) -> Path:
        """The checkpoint that ``ckpt_path`` names.

        Raises:
            ConfigError: it names none.
            CheckpointError: there is none.
        """
        if not self.ckpt_path:
            raise ConfigError("--ckpt_path is needed: last, best, a run directory or a checkpoint")
        path = self.checkpoint()
        if path is None:
            raise CheckpointError(f"no run with a checkpoint in {self.run_dir / self.experiment}")
        return path

    def console(self) -> Console:
        return Console(quiet=not self.fabric.is_global_zero, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def composed(args: Namespace, parser: Parser) -> Iterator[Experiment]:
    """The objects of a configuration; what a trial run leaves goes with it.

    Raises:
        ConfigError: it has several seeds.
    """
    seeds = seeds_of(args)
    if len(seeds) != 1:
        raise ConfigError(
            f"seed: expected the seed of one run, found {', '.join(map(str, seeds))}; --ckpt_path names the run, --seed "
            "its seed"
        )
    args.seed = seeds[0]
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
        yield Experiment(
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


def parameters(settings: dict) -> dict[str, str | int | float | bool]:
    """The configuration as flat parameters that people compare, less what says where a run ran."""
    left_out = ("config", "experiment", "fast_dev_run", "logger", "ckpt_path", "run_dir", "name", "tags")
    flat = flatten({k: v for k, v in settings.items() if k not in left_out})
    named = {k: v.rpartition(".")[2] if k.endswith(".class_path") else v for k, v in flat.items() if v is not None}
    return {
        k.replace(".init_args", "").removesuffix(".class_path"): v if isinstance(v, (int, float)) else str(v)
        for k, v in named.items()
    }
