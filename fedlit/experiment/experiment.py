"""A configuration as the objects that it describes."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch import LightningModule
from rich.console import Console

from fedlit import __version__
from fedlit.core.aggregator import composed_name
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.fabric import FederationFabric, launch, make_fabric
from fedlit.core.module import copy_of
from fedlit.core.parts import Parts
from fedlit.core.randomness import seed_process
from fedlit.core.system import documents
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.credentials import complete
from fedlit.experiment.naming import check_names, group_name, method_name, run_name
from fedlit.experiment.options import check_classes, resolved, seeds_of
from fedlit.experiment.parameters import parameters
from fedlit.experiment.parser import Parser
from fedlit.experiment.phases import Part, Phase
from fedlit.federation.assembly import assemble
from fedlit.federation.callbacks import Callback
from fedlit.federation.engines.base import Away
from fedlit.federation.evaluation import sanity_check
from fedlit.federation.federation import Federation
from fedlit.federation.handover import PersonalState
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.tracking.addresses import MARK, without_credentials
from fedlit.tracking.base import Tracker
from fedlit.tracking.lock import RunLock
from fedlit.tracking.loggers import tracker_of
from fedlit.tracking.run import find_checkpoint, git_revision


@dataclass
class Experiment:
    """The objects of one configuration.

    Attributes:
        config: The resolved configuration as YAML, which is saved with the run.
        settings: The same as nested mappings, for the tracker's parameters.
        model: The model before training; it stays as it is.
        tags: Tags of the run in MLflow.
        phases: The phases before the main part, in order.
        callbacks: What follows the rounds of every part.
        away: Who has the clients, where they are not here.
        given: Fingerprints of what is in no configuration, by what it is: of a run in Python.
        begun: Directory of a run that was killed before its first checkpoint, and begins there again.
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
    callbacks: list[Callback] = field(default_factory=list)
    away: Away | None = None
    given: dict[str, str] = field(default_factory=dict)
    begun: Path | None = None

    @cached_property
    def parts(self) -> list[Part]:
        """The run's stretches of rounds, in order: its phases, and the main part at the end.

        Raises:
            ConfigError: Two phases have the same name, or the settings of one do not fit together.
        """
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ConfigError(f"phases: expected different names, found {names}")
        parts = [Part(phase.federation(self.federation), phase) for phase in self.phases]
        for part in parts if self.fast_dev_run else ():
            part.federation.one_step()
        return [*parts, Part(self.federation)]

    @property
    def eval_batches(self) -> int | None:
        """Batches of each set that an evaluation looks at; None for all, also in a trial run where a site evaluates no less."""
        return 1 if self.fast_dev_run and not (self.away and self.away.whole) else None

    def session(self, run: Path | None = None, part: Part | None = None) -> Session:
        """Make a part ready to run, from where a run's earlier parts have brought the model; by default the main part."""
        part = part or self.parts[-1]
        model, personal_state = self._after(self.parts[: self.parts.index(part)], run)
        tags = self._tags | ({"fedlit.phases": str(len(self.phases))} if part.phase else {})
        return assemble(
            part.federation,
            part.model(model),
            self.data,
            self.fabric,
            part.seed(self.seed),
            tags=tags,
            limit_eval_batches=self.eval_batches,
            personal_state=personal_state,
            away=self.away,
            phase=part.phase.name if part.phase else "",
        )

    def pending(self, run: Path | None) -> list[Part]:
        """List the parts that have rounds ahead of them; the main part is always one, as it ends with the test."""
        return [part for part in self.parts[:-1] if not part.finished(run)] + self.parts[-1:]

    def first_session(self, run: Path | None) -> Session:
        """Make the first pending part ready to run, once the main part is known to fit together as well."""
        first = self.pending(run)[0]
        # Features of a body that a phase will change are not worth computing.
        if first.phase is not None and Parts.of(self.model).fixed_features is None:
            main = self.session()
            with closing(main.engine):
                Monitor.resolve(self.federation, sanity_check(main, main.restore(None)[0]), bool(self.callbacks))
        return self.session(run, first)

    def _after(self, parts: Sequence[Part], run: Path | None) -> tuple[LightningModule, PersonalState | None]:
        """The model as a run's earlier parts have left it, and what clients kept to themselves in the last of them."""
        if run is None or not parts:
            return self.model, None
        model = copy_of(self.model)
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        for part in parts:
            personal_state = part.personal_state(run, model, self.fabric)
            part.hand_on(run, model, fresh)
        return model, personal_state

    @property
    def _tags(self) -> dict[str, str]:
        method = method_name(self.federation, self.model)
        own = {"fedlit.method": method, "fedlit.group": group_name(self.settings, method)}
        own |= {"fedlit.algorithm": composed_name(self.federation.aggregators), "fedlit.seed": str(self.seed)}
        return own | self.tags | {"fedlit.version": __version__, "fedlit.git": git_revision() or "none"}

    @property
    def parameters(self) -> dict[str, str | int | float | bool]:
        """What people compare runs by, for the tracker."""
        return parameters(self.settings, self.federation, self.model)

    @property
    def run_name(self) -> str:
        """The name of a new run: the given one, or its method and seed with date and time."""
        return self.name or run_name(method_name(self.federation, self.model), self.seed)

    def checkpoint(self) -> Path | None:
        """Find the checkpoint that ``ckpt_path`` names; the answer is the same on every rank.

        Raises:
            ConfigError: It is empty, as of a variable of the shell that is not set.
            CheckpointError: There is none.
        """
        which = self.ckpt_path
        if which is not None and not which.strip():
            raise ConfigError("ckpt_path: expected last, best, a run directory or a checkpoint, found an empty text")
        found = find_checkpoint(self.run_dir, self.experiment, which, self.name) if which else None
        return self.fabric.broadcast(found)

    def required_checkpoint(self) -> Path:
        """Find the checkpoint that ``ckpt_path`` names.

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

    @contextmanager
    def alone(self, run: Path) -> Iterator[None]:
        """Keep other processes from a run's directory; the first rank holds it for all of them.

        Raises:
            ConfigError: Another process is at work there.
        """
        lock, refusal = RunLock(run), ""
        if self.fabric.is_global_zero:
            try:
                lock.acquire()
            except ConfigError as error:
                refusal = str(error)
        if refusal := self.fabric.broadcast(refusal):
            raise ConfigError(refusal)
        try:
            yield
        finally:
            lock.release()

    def console(self) -> Console:
        """Make the console to print to, which is quiet on all ranks but the first."""
        return Console(quiet=not self.fabric.is_global_zero, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def composed(args: Namespace, parser: Parser, tracked: bool = False) -> Iterator[Experiment]:
    """The objects of a configuration; what a trial run leaves goes with it.

    Args:
        args: The values of the configuration.
        parser: The parser that read them.
        tracked: Whether the command makes a run: the names and the logger are used.

    Raises:
        ConfigError: it has several seeds, a name is none of a folder, or credentials are missing.
    """
    seeds = seeds_of(args)
    if not seeds:
        raise ConfigError("seed: expected a number, found none")
    if parser.sources.where("model.classes"):
        raise ConfigError("model.classes: a model has the classes of its data; leave it out, or set data.classes")
    if len(seeds) != 1:
        raise ConfigError(
            f"seed: expected the seed of one run, found {', '.join(map(str, seeds))}; --ckpt_path names the run, --seed "
            "its seed"
        )
    args.seed = seeds[0]
    if tracked:  # others only read, also what an earlier version has named
        check_names(args)
    config = resolved(args, parser)
    if not tracked or args.fast_dev_run:
        args.logger = False
    complete(args)
    fabric = make_fabric(**args.fabric)
    launch(fabric)
    with _composed(args, parser, config, fabric) as experiment:
        yield experiment


@contextmanager
def _composed(args: Namespace, parser: Parser, config: str, fabric: FederationFabric) -> Iterator[Experiment]:
    """The objects of a configuration, on this device."""
    seed_process(args.seed, "initial weights")
    objects = parser.instantiate(args)
    check_classes(objects.model, objects.data)
    experiment = Experiment(
        config=config,
        settings=documents.parse(config),
        seed=args.seed,
        experiment=args.experiment,
        name=args.name,
        run_dir=Path(args.run_dir),
        ckpt_path=args.ckpt_path,
        fast_dev_run=args.fast_dev_run,
        fabric=fabric,
        data=objects.data,
        model=objects.model,
        federation=objects.federation,
        tracker=tracker_of(objects.logger),
        tags={name: without_credentials(str(value), MARK) for name, value in args.tags.items()},
        phases=objects.phases,
        callbacks=objects.callbacks or [],
    )
    with ready(experiment) as made:
        yield made


@contextmanager
def ready(experiment: Experiment) -> Iterator[Experiment]:
    """Give the experiment as it is run: a trial run is short, and what it leaves goes with it."""
    if not experiment.fast_dev_run:
        yield experiment
        return
    experiment.federation.one_step()
    with tempfile.TemporaryDirectory(prefix="fedlit-") as folder:
        yield replace(experiment, tracker=Tracker(), run_dir=Path(folder))
