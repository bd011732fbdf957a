"""What each round does: its stage, learning rate and communication window."""

from dataclasses import dataclass
from typing import Literal

from fedlit.errors import ConfigError

Unit = Literal["steps", "epochs"]


@dataclass(frozen=True)
class Plan:
    """The schedule's word on one round; see :class:`fedlit.messages.Round`."""

    stage: int
    lr_factor: float
    window: int
    unit: Unit
    first_of_stage: bool
    last_of_stage: bool


@dataclass
class Stage:
    """A stretch of rounds with one learning rate and one window.

    Args:
        rounds: length of the stage.
        window: communication window, local work between two communications.
        unit: of the window: local steps, or passes over a client's data.
        lr_factor: multiplies the optimizer's learning rates.
    """

    rounds: int
    window: int = 1
    unit: Unit = "epochs"
    lr_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rounds", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"schedule: {name} must be at least 1, found {getattr(self, name)}")
        if not self.lr_factor > 0:
            raise ConfigError(f"schedule: lr_factor must be above 0, found {self.lr_factor}")


class Schedule:
    """Maps the index of a round to its plan; a pure function, so that a resume needs no state."""

    def plan(self, index: int) -> Plan:
        raise NotImplementedError


class ConstantSchedule(Schedule):
    """The same window and learning rate in every round.

    Args:
        window: communication window, local work between two communications.
        unit: of the window: local steps, or passes over a client's data.
    """

    def __init__(self, window: int = 1, unit: Unit = "epochs") -> None:
        self._stage = Stage(1, window, unit)

    def plan(self, index: int) -> Plan:
        return Plan(0, 1.0, self._stage.window, self._stage.unit, index == 0, False)


class StageSchedule(Schedule):
    """A list of stages; rounds beyond the last go on with it.

    Args:
        stages: in order.
    """

    def __init__(self, stages: list[Stage]) -> None:
        if not stages:
            raise ConfigError("StageSchedule: expected at least one stage")
        self.stages = stages

    def plan(self, index: int) -> Plan:
        start = 0
        for number, stage in enumerate(self.stages):  # noqa: B007
            if index < start + stage.rounds:
                break
            start += stage.rounds
        else:
            start -= stage.rounds
        return Plan(
            number, stage.lr_factor, stage.window, stage.unit, index == start, index == start + stage.rounds - 1
        )
