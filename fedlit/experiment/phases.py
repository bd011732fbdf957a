"""The parts of a run: its phases, such as training a body on one source, and the main part, which is the last."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

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
from fedlit.federation.settings import Settings
from fedlit.schedules import Schedule

FOLDER = "phases"

TAKEN_OVER = ("participation", "weights", "gradient_clip", "gradient_clamp", "eval_every", "checkpoint_every")
"""Settings that a phase takes over from the main part unless it has its own."""


@checked
@dataclass
class Phase:
    """Train for some rounds before the main part, with clients, an objective and algorithms of its own.

    The next phase starts from the best model of this one. Rounds are counted on over the phases, and logged on the same
    run. What algorithms keep starts anew; a part of the model that a client keeps to itself in both goes on with its
    own values. Where a setting says "as the main part has it", leaving it out takes over what ``federation`` says.

    Args:
        name: Name of the phase, and of its folder in the run directory.
        rounds: Number of rounds. By default as many as the schedule describes, and 10 where it has no end.
        schedule: What each round does. By default one epoch a round.
        clients: Names of the clients that take part. By default all.
        aggregators: The algorithms. By default federated averaging.
        objective: The objective, in place of the model's own.
        optimizer: The optimizer, in place of the model's own.
        trainable: What is trained: ``all`` of the model, or its ``head``. By default as the model says.
        keep: What the next phase takes over: the ``body``, with a new head and new variables of the objective, or
            ``all``.
        optimizer_state: What happens to a client's optimizer state between its rounds: ``keep`` or ``reset``.
        monitor: Metric that says which model is best; ``auto`` chooses as in the main part.
        monitor_mode: Whether more of the metric is better (``max``) or less (``min``); ``auto`` knows of losses and AUROC.
        patience: Number of rounds without a better model after which the phase ends. By default it never ends early.
        patience_margin: How much worse than the best a round's metric has to be for the round to count for patience. By
            default every round counts that is not better.
        participation: Share of the clients that train in a round. By default as the main part has it.
        weights: Weights of the clients in every mean, ``examples`` or ``uniform``. By default as the main part has it;
            where it says nothing, what the phase's own aggregators state.
        lr_factors: Factors of the learning rates of single clients by name. By default all train at the phase's rates,
            whatever the main part says.
        gradient_clip: Largest norm of a local gradient. By default as the main part has it.
        gradient_clamp: Largest absolute value of its elements. By default as the main part has it.
        eval_every: Number of rounds between evaluations. By default as the main part has it.
        checkpoint_every: Rounds between checkpoints, seconds such as ``60s``, or ``auto``. By default as the main part
            has it.

    Raises:
        ConfigError: The name is no name of a folder.
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
    participation: float | None = None
    weights: Literal["examples", "uniform"] | None = None
    lr_factors: dict[str, float] | None = None
    gradient_clip: float | None = None
    gradient_clamp: float | None = None
    eval_every: int | None = None
    checkpoint_every: int | str | None = None

    def __post_init__(self) -> None:
        check_name("phases.name", self.name)

    def federation(self, main: Federation) -> Federation:
        """Give the settings of its rounds: its own, and the main part's for the rest.

        Raises:
            ConfigError: They do not fit together; names the phase.
        """
        names = {setting.name for setting in fields(Settings)}
        own = {name: value for name, value in vars(self).items() if name in names}
        taken_over = [name for name in TAKEN_OVER if own[name] is None]
        try:
            return replace(main, **{name: value for name, value in own.items() if name not in taken_over})
        except ConfigError as error:
            raise ConfigError(f"phases, {self.name!r}: {error}") from error


class Part:
    """Be one stretch of rounds of a run, with their settings: a phase, or the main part (None), which is the last."""

    def __init__(self, federation: Federation, phase: Phase | None = None) -> None:
        self.federation, self.phase = federation, phase

    @property
    def title(self) -> str:
        """A line for the terminal; "" of the main part."""
        return f"phase {self.phase.name!r}, before the main part" if self.phase else ""

    def seed(self, seed: int) -> int:
        """Derive the part's own seed from that of the run."""
        return derive_seed(seed, "phase", self.phase.name) if self.phase else seed

    def model(self, main: LightningModule) -> LightningModule:
        """Give the model as it is trained in this part; the main part's is the model itself.

        Raises:
            ConfigError: The model has no objective or optimizer that could be replaced, or no head that could be trained
                alone.
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
        """Name the folder in which a run keeps the part's checkpoints."""
        return (run / FOLDER / self.phase.name if self.phase else run) / "checkpoints"

    def finished(self, run: Path | None) -> bool:
        """Tell whether a run has all of its rounds behind it."""
        last = checkpoint.find(self.checkpoints(run), "last") if run else None
        return last is not None and self.federation.over(checkpoint.rounds(last), checkpoint.best(last))

    def hand_on(self, run: Path, model: LightningModule, fresh: Mapping[str, Tensor]) -> None:
        """Load what a phase of a run has learned into ``model``, which is as it was before, for the next one, by name.

        What is not kept starts afresh, from the initial values.
        """
        learned, dropped = checkpoint.tensors(self._result(run)), self.dropped(model)
        for name, value in model.state_dict().items():
            if name.startswith(dropped):
                value.copy_(fresh[name])
            elif name in learned and learned[name].shape == value.shape:
                value.copy_(learned[name])

    def personal_state(self, run: Path, model: LightningModule, fabric: FederationFabric) -> PersonalState:
        """Give what clients kept to themselves in a phase of a run; ``model`` is as it was before the phase."""
        aggregators = self.federation.aggregators
        layout = Layout.of(configured(fabric, self.model(model), aggregators))
        return PersonalState(self._result(run), layout, aggregators, self.dropped(model), self.phase.name)

    def _result(self, run: Path) -> Path:
        """The checkpoint from which the next phase goes on."""
        folder = self.checkpoints(run)
        return checkpoint.find(folder, "best") or checkpoint.find(folder, "last")

    def dropped(self, model: LightningModule) -> tuple[str, ...]:
        """Name beginnings of the names of tensors that start afresh after it."""
        if self.phase is None or self.phase.keep == "all":
            return ()
        parts = [name for name, m in model.named_modules() if name == "head" or isinstance(m, Objective)]
        return tuple(f"{name}." for name in parts)

    def _needs(self, model: LightningModule, attribute: str) -> None:
        if not hasattr(model, attribute):
            raise ConfigError(
                f"phases, {self.phase.name!r}: {type(model).__name__} has no {attribute!r} for a phase to change; "
                "ImageClassifier shows how"
            )
