"""Experiments: configurations and the objects that they describe."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule
from rich.console import Console

from fedlit import __version__
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.module import copy_of
from fedlit.core.parts import Parts
from fedlit.core.seeds import derive_seed
from fedlit.core.system import documents
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.naming import Names
from fedlit.experiment.phases import Phase, settings_of, started
from fedlit.federation.assembly import assemble
from fedlit.federation.callbacks import Callback
from fedlit.federation.engines.base import Away
from fedlit.federation.evaluation import sanity_check
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.federation.session import Session
from fedlit.tracking.addresses import MARK, without_credentials
from fedlit.tracking.base import Tracker
from fedlit.tracking.loggers import tracker_of
from fedlit.tracking.names import PHASE
from fedlit.tracking.run import PHASES, git_revision


@dataclass
class Experiment:
    """The objects of one configuration.

    Attributes:
        config: The resolved configuration as YAML, which is saved with the run.
        settings: The same as nested mappings, for the tracker's parameters.
        model: The model before training, which is not changed.
        away: Access to the clients, if they are not in this process.
        fingerprints: Fingerprints of objects that no configuration describes, by name, of a run in Python.
        phase: Name of the phase that this run is; its rounds draw from a stream of this name.
        alters: That phase, whose objective, optimizer and trained part replace those of the model.
        console: Console for messages, which prints only on the first rank.
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
    figures: bool = True
    tags: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)
    away: Away | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    phase: str | None = None
    alters: Phase | None = None

    def __post_init__(self) -> None:
        self.console = Console(quiet=not self.fabric.is_global_zero, highlight=False, markup=False, soft_wrap=True)

    @classmethod
    def of(cls, config: str, options: Mapping[str, Any], **objects: Any) -> "Experiment":
        """Make an experiment of a resolved configuration: as YAML, as values by key, and the objects made of it."""
        return cls(
            config=config,
            settings=documents.parse(config),
            run_dir=Path(options["run_dir"]),
            tracker=tracker_of(options["logger"]),
            tags={name: without_credentials(str(value), MARK) for name, value in options["tags"].items()},
            callbacks=options["callbacks"] or [],
            **{
                key: options[key]
                for key in ("seed", "experiment", "name", "ckpt_path", "fast_dev_run", "figures", "phases", "phase")
            },
            **objects,
        )

    @cached_property
    def names(self) -> Names:
        """Names of the method and its parts, and of the run."""
        return Names.of(self.federation, self._altered(self.model), self.settings, self.seed)

    @cached_property
    def runs(self) -> list["Experiment"]:
        """The runs that are trained one after the other: the phases, then this one.

        Raises:
            ConfigError: Two phases have the same name, the settings of one contradict each other, or one is private.
        """
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ConfigError(f"phases: expected different names, found {names}")
        runs = [*(self._phase(number) for number in range(len(names))), self]
        if names and any(each.private for run in runs for each in run.federation.aggregators):
            raise ConfigError("phases: epsilon is that of one run, and phases share their images; train without phases")
        return runs

    def _phase(self, number: int) -> "Experiment":
        phase = self.phases[number]
        federation, settings = phase.federation(self.federation), settings_of(self.settings, number)
        if self.fast_dev_run:
            federation.rounds, federation.schedule = 1, self.federation.schedule
        return replace(
            self, settings=settings, experiment=PHASES, name=phase.name, ckpt_path=None, federation=federation,
            tracker=self.tracker.of_phase(), tags={**self.tags, PHASE: phase.name}, phases=self.phases[:number],
            away=self.away and self.away.of_run(settings), fingerprints={}, phase=phase.name, alters=phase,
        )  # fmt: skip

    def placed(self, run: Path) -> "Experiment":
        """Return this phase as a run in the directory of the whole run, ``RUN/phases/NAME``."""
        settings = {
            **self.settings, "experiment": self.experiment, "name": self.name, "run_dir": str(run), "ckpt_path": None
        }  # fmt: skip
        config = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        return replace(self, run_dir=run, settings=settings, config=config)

    @property
    def eval_batches(self) -> int | None:
        """Number of batches of each data set in an evaluation; None for all, also if sites evaluate only whole sets."""
        return 1 if self.fast_dev_run and not (self.away and self.away.whole) else None

    def session(self, directory: Path | None = None) -> Session:
        """Make the session of the run in a directory, which starts from the weights of its phases.

        Without a directory it starts from its own first weights.
        """
        start = started(self.model, self.phases, directory) if self.phases and directory else self.model
        names = self.names
        tags = {"fedlit.method": names.method, "fedlit.group": names.group, "fedlit.seed": str(self.seed)} | self.tags
        tags |= {"fedlit.version": __version__, "fedlit.git": git_revision() or "none"}
        seed = derive_seed(self.seed, "phase", self.phase) if self.phase else self.seed
        return assemble(
            self.federation, self._altered(start), self.data, self.fabric, seed, tags=tags, away=self.away,
            limit_eval_batches=self.eval_batches,
        )  # fmt: skip

    def check(self, session: Session) -> None:
        """Check the monitor of a run, and what it hands on if it is a phase, before anything is trained.

        Raises:
            ConfigError: There is no such metric, or nobody trains what is handed on.
        """
        if self.alters:
            self.alters.check_handed_on(session)
        Monitor.resolve(self.federation, sanity_check(session, session.restore(None)[0]), bool(self.callbacks))

    def check_later(self) -> None:
        """Check a run that is trained after others, on the first weights of its model.

        Raises:
            ConfigError: Its settings do not fit the model or the data.
        """
        model = self._altered(self.model)
        if (parts := Parts.of(model)).fixed_features is not None:  # its features would be computed in vain
            if parts.train_only is None or self.away is not None:
                return
            model = copy_of(model)
            model.train_only("all")
        session = replace(self, model=model, alters=None, federation=replace(self.federation, workers=1)).session()
        with closing(session.engine):
            self.check(session)

    def _altered(self, model: LightningModule) -> LightningModule:
        return self.alters.model(model) if self.alters else model


@contextmanager
def ready(experiment: Experiment) -> Iterator[Experiment]:
    """Context manager that shortens a trial run, and deletes its files at the end."""
    if not experiment.fast_dev_run:
        yield experiment
        return
    experiment.federation.one_step()
    with tempfile.TemporaryDirectory(prefix="fedlit-") as folder:
        experiment.tracker, experiment.run_dir = Tracker(), Path(folder)
        yield experiment
