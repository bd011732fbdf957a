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
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Layout
from fedlit.core.local_model import configured
from fedlit.core.module import copy_of
from fedlit.core.objective import Objective
from fedlit.core.seeds import derive_seed
from fedlit.core.system.argument_types import checked
from fedlit.experiment.naming import check_name
from fedlit.federation.federation import Federation
from fedlit.federation.handover import PersonalState
from fedlit.federation.participation import Participation
from fedlit.federation.session import Session
from fedlit.federation.settings import RoundSettings, Settings
from fedlit.tracking.run import Run

FOLDER = "phases"

INHERITED = ("participation", "weights", "gradient_clip", "gradient_clamp", "eval_every", "checkpoint_every")
"""Settings that a phase inherits from the main part if it leaves them out."""


@checked
@dataclass(kw_only=True)
class Phase(RoundSettings):
    """A phase: rounds before the main part, with its own clients, objective and algorithms.

    The next phase starts from the best model of this one. All phases log to the same run, and their rounds are numbered
    consecutively. The states of algorithms start afresh in each phase; a part of the model that a client keeps in both
    phases continues with the client's values. By default participation, weights, gradient_clip, gradient_clamp,
    eval_every and checkpoint_every are as in the main part; lr_factors are not.

    Args:
        name: Name of the phase, and of its folder in the run directory.
        objective: The objective, instead of that of the model.
        optimizer: The optimizer, instead of that of the model.
        trainable: The trained part of the model: ``all`` or ``head``. By default as the model defines.
        keep: The part of the model with which the next phase starts: the ``body``, with a new head and new variables of
            the objective, or ``all``.

    Raises:
        ConfigError: The name cannot be that of a folder.
    """

    name: str = field(kw_only=False)
    aggregators: list[Aggregator] = field(default_factory=list)
    objective: nn.Module | None = None
    optimizer: OptimizerCallable | None = None
    trainable: Literal["all", "head"] | None = None
    keep: Literal["body", "all"] = "body"
    optimizer_state: Literal["reset", "keep"] = "keep"
    participation: float | Participation | None = None
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
            raise ConfigError(f"phases, {self.name!r}: {error}", key=error.key) from error


class RunPart:
    """Consecutive rounds of a run with the same settings: a phase, or the main part.

    Attributes:
        name: Name of the phase; "" for the main part.
        seed: Seed of the part, derived from that of the run.
        title: A line for the terminal, or "" for the main part.
    """

    def __init__(self, federation: Federation, phase: Phase | None = None, seed: int = 0) -> None:
        self.federation, self.phase = federation, phase
        self.seed = derive_seed(seed, "phase", phase.name) if phase else seed
        self.name = phase.name if phase else ""
        self.title = f"phase {phase.name!r}, before the main part" if phase else ""

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
        """Load the result of a phase into ``model`` by name; tensors that are not kept get their ``fresh`` values."""
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
                f"{type(model).__name__} without; add it as in ImageClassifier",
                key="phase-attribute-missing",
            )
