"""The phases of a run, such as training a body on one source: each is a run of its own before the last one."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from fedlit.core.aggregator import Aggregator
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.module import copy_of
from fedlit.core.objective import Objective
from fedlit.core.system.argument_types import checked
from fedlit.experiment.naming import check_name
from fedlit.federation.federation import Federation
from fedlit.federation.participation import Participation
from fedlit.federation.session import Session
from fedlit.federation.settings import RoundSettings, Settings
from fedlit.tracking.run import PHASES, run_above

INHERITED = ("participation", "weights", "gradient_clip", "gradient_clamp", "eval_every", "checkpoint_every")
"""Settings that a phase inherits from the main part if it leaves them out."""

OF_THE_MODEL = ("objective", "optimizer", "trainable")
"""Keys of a phase that replace arguments of the model."""


@checked
@dataclass(kw_only=True)
class Phase(RoundSettings):
    """A phase: a run before the main part, with its own clients, objective and algorithms.

    The next phase, or the main part, starts from the best model of this one. Only the federation's model is handed on:
    states of algorithms and optimizers start afresh, and what clients keep to themselves ends with the phase. By
    default participation, weights, gradient_clip, gradient_clamp, eval_every and checkpoint_every are as in the main
    part; lr_factors are not.

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
    eval_every: int | str | None = None
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

    def model(self, start: LightningModule) -> LightningModule:
        """Return a copy of the model with the phase's objective, optimizer and trained part.

        Raises:
            ConfigError: The model lacks the objective, optimizer or head that the phase changes.
        """
        model = copy_of(start)
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

    def check_handed_on(self, session: Session) -> None:
        """Refuse to hand on a part of the model that clients keep to themselves and nobody trains at the server.

        Raises:
            ConfigError: There is such a part; names it.
        """
        layout, masks = session.layout, session.masks.values()
        ends = set(layout.groups(("head", "dual")))
        handed_on = {segment.group for segment in layout.segments} - (set() if self.keep == "all" else ends)
        handed_on |= {layout.stats_group} if layout.stats_size else set()
        lost = {g for g in handed_on if any(m.kept[g] for m in masks) and not any(m.owned[g] for m in masks)}
        if lost:
            part = "the head" if lost <= ends else "a part of the body"
            raise ConfigError(
                f"phases, {self.name!r}: expected a model that the clients share, found {part} that each keeps to "
                f"itself ({session.algorithm}); the next part would start from its first weights: "
                f"{'hand on the body only (keep: body), or ' if part == 'the head' else ''}train the phase with "
                "aggregators that share it"
            )

    def _needs(self, model: LightningModule, attribute: str) -> None:
        if not hasattr(model, attribute):
            raise ConfigError(
                f"phases, {self.name!r}: expected a model with {attribute!r}, which the phase changes, found "
                f"{type(model).__name__} without; add it as in ImageClassifier"
            )


def directory_of(phase: str, run: Path) -> Path:
    """Return the directory of a phase of a run, or of an earlier phase of the run of which ``run`` is a phase."""
    return (run_above(run) or run) / PHASES / phase


def started(model: LightningModule, phases: Sequence[Phase], run: Path) -> LightningModule:
    """Return a copy of the model with the weights that the finished phases of a run hand on, by name.

    Raises:
        CheckpointError: A phase has no checkpoint, or one of another model.
    """
    model = copy_of(model)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    for phase in phases:
        folder = directory_of(phase.name, run)
        learned, dropped = checkpoint.tensors(folder), _dropped(phase, model)
        for name, value in model.state_dict().items():
            if name.startswith(dropped):
                value.copy_(fresh[name])
            elif name in learned:
                if learned[name].shape != value.shape:
                    raise CheckpointError(
                        f"{folder}: expected {name} of shape {tuple(value.shape)}, found {tuple(learned[name].shape)}: "
                        "the phase trained another model or objective; use keep: body, or restore the folder"
                    )
                value.copy_(learned[name])
    return model


def settings_of(settings: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the configuration of a phase as that of a run, from that of the whole run."""
    model, main = settings["model"], settings["federation"]
    options = model.get("init_args") or {}
    # Spelled out, because those before this one inherit from the whole run, not from this one.
    inherited = {key: main.get(key) for key in INHERITED} | {key: options.get(key) for key in OF_THE_MODEL}
    *before, phase = (
        {**each, **{key: value for key, value in inherited.items() if each.get(key) is None}}
        for each in settings["phases"][: number + 1]
    )
    own = {key: phase[key] for key in OF_THE_MODEL if phase[key] is not None}
    return {
        **settings,
        "model": {**model, "init_args": {**options, **own}},
        "federation": {**main, **{key: value for key, value in phase.items() if key in main}},
        "phases": before,
        "phase": phase["name"],
    }


def _dropped(phase: Phase, model: LightningModule) -> tuple[str, ...]:
    """Return the beginnings of the names of tensors that start afresh after a phase."""
    if phase.keep == "all":
        return ()
    parts = [name for name, m in model.named_modules() if name == "head" or isinstance(m, Objective)]
    return tuple(f"{name}." for name in parts)
