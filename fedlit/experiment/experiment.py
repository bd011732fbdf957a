"""Experiments: configurations and the objects that they describe."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from rich.console import Console

from fedlit import __version__
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.module import copy_of
from fedlit.core.parts import Parts
from fedlit.core.system import documents
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.naming import Names
from fedlit.experiment.phases import Phase, RunPart
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
from fedlit.tracking.loggers import tracker_of
from fedlit.tracking.run import git_revision


@dataclass
class Experiment:
    """The objects of one configuration.

    Attributes:
        config: The resolved configuration as YAML, which is saved with the run.
        settings: The same as nested mappings, for the tracker's parameters.
        model: The model before training, which is not changed.
        away: Access to the clients, if they are not in this process.
        fingerprints: Fingerprints of objects that no configuration describes, by name, of a run in Python.
        begun: Directory of a run that was killed before its first checkpoint, in which it starts again.
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
    tags: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)
    away: Away | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    begun: Path | None = None

    def __post_init__(self) -> None:
        self.names = Names.of(self.federation, self.model, self.settings, self.seed)
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
            **{key: options[key] for key in ("seed", "experiment", "name", "ckpt_path", "fast_dev_run", "phases")},
            **objects,
        )

    @cached_property
    def parts(self) -> list[RunPart]:
        """The parts of the run in order: its phases, then the main part.

        Raises:
            ConfigError: Two phases have the same name, or the settings of one contradict each other.
        """
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ConfigError(f"phases: expected different names, found {names}", key="phase-names-repeated")
        parts = [RunPart(phase.federation(self.federation), phase, self.seed) for phase in self.phases]
        for part in parts if self.fast_dev_run else ():
            part.federation.one_step()
        return [*parts, RunPart(self.federation, seed=self.seed)]

    @property
    def eval_batches(self) -> int | None:
        """Number of batches of each data set in an evaluation; None for all, also if sites evaluate only whole sets."""
        return 1 if self.fast_dev_run and not (self.away and self.away.whole) else None

    def session(self, run: Path | None = None, part: RunPart | None = None) -> Session:
        """Make the session of a part, by default the main part, with the model of the run's earlier parts."""
        part = part or self.parts[-1]
        model, personal_state = self._after(self.parts[: self.parts.index(part)], run)
        names = self.names
        tags = {"fedlit.method": names.method, "fedlit.group": names.group, "fedlit.seed": str(self.seed)} | self.tags
        tags |= {"fedlit.version": __version__, "fedlit.git": git_revision() or "none"}
        tags |= {"fedlit.phases": str(len(self.phases))} if part.phase else {}
        return assemble(
            part.federation, part.model(model), self.data, self.fabric, part.seed, tags=tags, away=self.away,
            limit_eval_batches=self.eval_batches, personal_state=personal_state, phase=part.name,
        )  # fmt: skip

    def first_session(self, run: Path | None) -> tuple[Session, list[RunPart]]:
        """Make the session of the first unfinished part, once the main part has been checked; return the unfinished.

        The main part is always among them, because it ends with the test.
        """
        first, *others = [part for part in self.parts[:-1] if not part.finished(run)] + self.parts[-1:]
        # Not for a frozen body, whose features would be computed in vain if a phase changes it.
        if first.phase is not None and Parts.of(self.model).fixed_features is None:
            main = self.session()
            with closing(main.engine):
                Monitor.resolve(self.federation, sanity_check(main, main.restore(None)[0]), bool(self.callbacks))
        return self.session(run, first), [first, *others]

    def _after(self, parts: Sequence[RunPart], run: Path | None) -> tuple[LightningModule, PersonalState | None]:
        """Return the model after a run's earlier parts, and what clients kept in the last of them."""
        if run is None or not parts:
            return self.model, None
        model = copy_of(self.model)
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        for part in parts:
            personal_state = part.personal_state(run, model, self.fabric)
            part.carry_over(run, model, fresh)
        return model, personal_state


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
