"""The parts of a run: its phases, such as training a body on one source, and finally the main part."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.core.aggregator import Aggregator
from fedlit.core.argument_types import checked
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.local_model import configured
from fedlit.core.module import copy_of
from fedlit.core.objective import Objective
from fedlit.core.seeds import derive_seed
from fedlit.experiment.naming import check_name
from fedlit.federation.federation import Federation
from fedlit.federation.handover import PersonalState
from fedlit.federation.participation import Participation
from fedlit.federation.session import Session
from fedlit.federation.settings import Settings
from fedlit.schedules import Schedule
from fedlit.tracking.run import Run

FOLDER = "phases"

INHERITED = ("participation", "weights", "gradient_clip", "gradient_clamp", "eval_every", "checkpoint_every")
"""Settings that a phase inherits from the main part if it leaves them out."""


@checked
@dataclass
class Phase:
    """A phase: rounds before the main part, with its own clients, objective and algorithms.

    The next phase starts from the best model of this one. All phases log to the same run, and their rounds are numbered
    consecutively. The states of algorithms start afresh in each phase; a part of the model that a client keeps in both
    phases continues with the client's values. "As in the main part" means the value of ``federation``.

    Args:
        name: Name of the phase, and of its folder in the run directory.
        rounds: Number of rounds. By default as many as the schedule describes, or 10 if it has no end.
        schedule: Window, unit and learning rate of each round. By default one epoch per round.
        clients: Names of the clients that take part. By default all.
        aggregators: The algorithms. By default federated averaging.
        objective: The objective, instead of that of the model.
        optimizer: The optimizer, instead of that of the model.
        trainable: The trained part of the model: ``all`` or ``head``. By default as the model defines.
        keep: The part of the model with which the next phase starts: the ``body``, with a new head and new variables of
            the objective, or ``all``.
        optimizer_state: Whether to ``keep`` or ``reset`` a client's optimizer state between its rounds.
        monitor: Metric that selects the best model; ``auto`` chooses as in the main part.
        monitor_mode: Whether higher (``max``) or lower (``min``) is better; ``auto`` knows losses and AUROC.
        patience: Number of rounds without a better model after which the phase ends. By default it never ends early.
        patience_margin: Difference from the best metric below which a worse round does not count for patience. By
            default every round counts that is not better.
        participation: Share of the clients that train in a round, or a plan. By default as in the main part.
        weights: Weights of the clients in every mean, ``examples`` or ``uniform``. By default as in the main part, or
            else as the phase's aggregators define.
        lr_factors: Factors of the learning rates of single clients by name. By default all are 1, also if the main part
            has factors.
        gradient_clip: Largest norm of a local gradient. By default as in the main part.
        gradient_clamp: Largest absolute value of the elements of a local gradient. By default as in the main part.
        eval_every: Number of rounds between evaluations. By default as in the main part.
        checkpoint_every: Number of rounds between checkpoints, seconds such as ``60s``, or ``auto``. By default as in
            the main part.

    Raises:
        ConfigError: The name cannot be that of a folder.
    """

    name: str
    rounds: int | None = None
    schedule: Schedule | None = None
    clients: list[str] | None = None
    aggregators: list[Aggregator] = field(default_factory=list)
    objective: nn.Module | None = None
    optimizer: OptimizerCallable | None = None
    trainable: Literal["all", "head"] | None = None
    keep: Literal["body", "all"] = "body"
    optimizer_state: Literal["reset", "keep"] = "keep"
    monitor: str = "auto"
    monitor_mode: Literal["auto", "max", "min"] = "auto"
    patience: int | None = None
    patience_margin: float | None = None
    participation: float | Participation | None = None
    weights: Literal["examples", "uniform"] | None = None
    lr_factors: dict[str, float] | None = None
    gradient_clip: float | None = None
    gradient_clamp: float | None = None
    eval_every: int | None = None
    checkpoint_every: int | str | None = None

    def __post_init__(self) -> None:
        check_name("phases.name", self.name)

    def federation(self, main: Federation) -> Federation:
        """Return the settings of its rounds: its own, and for the rest those of the main part.

        Raises:
            ConfigError: They contradict each other; names the phase.
        """
        names = {setting.name for setting in fields(Settings)}
        settings = {name: value for name, value in vars(self).items() if name in names}
        inherited = [name for name in INHERITED if settings[name] is None]
        try:
            return replace(main, **{name: value for name, value in settings.items() if name not in inherited})
        except ConfigError as error:
            raise ConfigError(f"phases, {self.name!r}: {error}") from error


class RunPart:
    """Consecutive rounds of a run with the same settings: a phase, or the main part (``phase`` None)."""

    def __init__(self, federation: Federation, phase: Phase | None = None) -> None:
        self.federation, self.phase = federation, phase

    @property
    def title(self) -> str:
        """A line for the terminal, or "" for the main part."""
        return f"phase {self.phase.name!r}, before the main part" if self.phase else ""

    def seed(self, seed: int) -> int:
        """Return the seed of the part, derived from that of the run."""
        return derive_seed(seed, "phase", self.phase.name) if self.phase else seed

    def model(self, main: LightningModule) -> LightningModule:
        """Return the model that is trained in this part: a copy for a phase, the model itself for the main part.

        Raises:
            ConfigError: The model lacks the objective, optimizer or head that the phase changes.
        """
        if self.phase is None:
            return main
        model = copy_of(main)
        for part in ("objective", "optimizer"):
            if getattr(self.phase, part) is not None:
                self._needs(model, part)
                setattr(model, part, copy.deepcopy(getattr(self.phase, part)))
        if isinstance(self.phase.objective, Objective):
            model.objective.build(len(model.classes))
        if self.phase.trainable is not None:
            self._needs(model, "train_only")
            model.train_only(self.phase.trainable)
        return model

    def checkpoints(self, run: Path) -> Path:
        """Return the folder of the part's checkpoints in a run."""
        return (run / FOLDER / self.phase.name if self.phase else run) / "checkpoints"

    def fit(self, session: Session, run: Run, asked: Path | None, **options: Any) -> int:
        """Train the part from its last checkpoint (a phase) or from the ``asked`` one, see `Federation.fit`."""
        folder = self.checkpoints(run.directory)
        resume = asked if asked and asked.parent == folder else None
        if self.phase:
            resume = checkpoint.find(folder, "last")
        return self.federation.fit(session, run, resume, checkpoints=folder, **options)

    def finished(self, run: Path | None) -> bool:
        """Return whether a run has completed all rounds of the part."""
        last = checkpoint.find(self.checkpoints(run), "last") if run else None
        return last is not None and self.federation.over(checkpoint.rounds(last), checkpoint.best(last))

    def carry_over(self, run: Path, model: LightningModule, fresh: Mapping[str, Tensor]) -> None:
        """Load the result of a phase into ``model`` by name; tensors that are not kept get their initial values.

        Args:
            run: The run's directory.
            model: The model before the phase, which is changed.
            fresh: Initial values by name.
        """
        learned, dropped = checkpoint.tensors(self._result(run)), self.dropped(model)
        for name, value in model.state_dict().items():
            if name.startswith(dropped):
                value.copy_(fresh[name])
            elif name in learned and learned[name].shape == value.shape:
                value.copy_(learned[name])

    def personal_state(self, run: Path, model: LightningModule, fabric: FederationFabric) -> PersonalState:
        """Return the state that clients kept in a phase of a run; ``model`` is that before the phase."""
        aggregators = self.federation.aggregators
        layout = Layout.of(configured(fabric, self.model(model), aggregators))
        return PersonalState(self._result(run), layout, aggregators, self.dropped(model), self.phase.name)

    def _result(self, run: Path) -> Path:
        """Return the checkpoint from which the next phase starts."""
        folder = self.checkpoints(run)
        return checkpoint.find(folder, "best") or checkpoint.find(folder, "last")

    def dropped(self, model: LightningModule) -> tuple[str, ...]:
        """Return the beginnings of the names of tensors that start afresh after it."""
        if self.phase is None or self.phase.keep == "all":
            return ()
        parts = [name for name, m in model.named_modules() if name == "head" or isinstance(m, Objective)]
        return tuple(f"{name}." for name in parts)

    def _needs(self, model: LightningModule, attribute: str) -> None:
        if not hasattr(model, attribute):
            raise ConfigError(
                f"phases, {self.phase.name!r}: expected a model with {attribute!r}, which the phase changes, found "
                f"{type(model).__name__} without; add it as in ImageClassifier"
            )
