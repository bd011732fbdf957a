"""Phases: what a federation does before its main part, such as training a body on one source."""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit import checkpoint
from fedlit.aggregators.base import Aggregator
from fedlit.errors import ConfigError
from fedlit.fabric import FederationFabric
from fedlit.federation import Federation
from fedlit.flat import Layout
from fedlit.local import configured
from fedlit.objectives.base import Objective
from fedlit.personal import PersonalParts
from fedlit.schedules import Schedule

FOLDER = "phases"


@dataclass
class Phase:
    """A stretch of rounds with clients, an objective and algorithms of its own; the next starts from its best model.

    Rounds are counted on over the phases, and logged on the same run. What algorithms keep starts anew;
    a part of the model that a client keeps to itself in both goes on with its own values.

    Args:
        name: of its folder in the run directory.
        rounds: number of rounds; by default as many as the schedule describes, 10 where it has no end.
        schedule: what each round does; by default one epoch a round.
        clients: who takes part, by name; by default all.
        aggregators: the algorithms; by default federated averaging.
        objective: instead of the model's own.
        optimizer: instead of the model's own.
        trainable: ``all`` of the model, or its ``head``; by default as the model says.
        keep: what the next phase takes over: the ``body``, with a new head and new variables of the objective, or ``all``.
        optimizer_state: a client's optimizer state between its rounds: ``keep`` or ``reset``.
        monitor: metric that says which model is best, as in the main part.
        monitor_mode: whether more of it is better (``max``) or less (``min``).
        patience: end the phase after so many rounds without a better model.
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
    monitor_mode: Literal["max", "min"] = "max"
    patience: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ConfigError(f"phases: expected a name of letters, digits and _ . -, found {self.name!r}")

    def federation(self, main: Federation) -> Federation:
        """Its rounds, run as the main part is."""
        return Federation(
            self.aggregators,
            self.rounds,
            self.schedule,
            self.clients,
            optimizer_state=self.optimizer_state,
            measure_batches=main.training.measure_batches,
            workers=main.workers,
            threads=main.threads,
            monitor=self.monitor,
            monitor_mode=self.monitor_mode,
            patience=self.patience,
        )

    def model(self, main: LightningModule) -> LightningModule:
        """The model as it is trained in this phase.

        Raises:
            ConfigError: the model has no objective or optimizer that could be replaced, or no head that could be trained
                alone.
        """
        model = copy.deepcopy(main)
        for part in ("objective", "optimizer"):
            if getattr(self, part) is not None:
                self._needs(model, part)
                setattr(model, part, copy.deepcopy(getattr(self, part)))
        if isinstance(self.objective, Objective):
            model.objective.build(len(model.classes))
        if self.trainable is not None:
            self._needs(model, "train_only")
            model.train_only(self.trainable)
        return model

    def checkpoints(self, run: Path) -> Path:
        """Where a run keeps its checkpoints."""
        return run / FOLDER / self.name / "checkpoints"

    def finished(self, run: Path, main: Federation) -> bool:
        """Whether a run has all of its rounds behind it."""
        last = checkpoint.find(self.checkpoints(run), "last")
        return last is not None and self.federation(main).over(checkpoint.rounds(last), checkpoint.best(last))

    def hand_on(self, run: Path, model: LightningModule, fresh: Mapping[str, Tensor]) -> None:
        """Load what a run's phase has learned into the next one's model, by name; what is not kept starts afresh.

        Args:
            run: its directory.
            model: as it was before the phase.
            fresh: initial values of the model.
        """
        found, dropped = checkpoint.tensors(self._result(run)), self._dropped(model)
        state = model.state_dict()
        for name, value in state.items():
            if name.startswith(dropped):
                value.copy_(fresh[name])
            elif name in found and found[name].shape == value.shape:
                value.copy_(found[name])

    def personal_parts(self, run: Path, model: LightningModule, fabric: FederationFabric) -> PersonalParts:
        """What clients kept to themselves in a run's phase; ``model`` is as it was before the phase."""
        layout = Layout.of(configured(fabric, self.model(model), self.aggregators))
        return PersonalParts(self._result(run), layout, self.aggregators, self._dropped(model))

    def _result(self, run: Path) -> Path:
        """The checkpoint from which the next phase goes on."""
        folder = self.checkpoints(run)
        return checkpoint.find(folder, "best") or checkpoint.find(folder, "last")

    def _dropped(self, model: LightningModule) -> tuple[str, ...]:
        """Beginnings of the names of tensors that start afresh after it."""
        parts = [name for name, m in model.named_modules() if name == "head" or isinstance(m, Objective)]
        return tuple(f"{name}." for name in parts if self.keep == "body")

    def _needs(self, model: LightningModule, attribute: str) -> None:
        if not hasattr(model, attribute):
            raise ConfigError(
                f"phases, {self.name!r}: {type(model).__name__} has no {attribute!r} for a phase to change; "
                "ImageClassifier shows how"
            )
