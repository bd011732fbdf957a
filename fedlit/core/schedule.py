"""The interface of schedules, which map the index of a round to its plan."""

from dataclasses import dataclass
from typing import Literal

from fedlit.core.ranges import Count, NonNegative
from fedlit.core.system.argument_types import Checked, checked

Unit = Literal["steps", "epochs"]


@checked
@dataclass(frozen=True)
class Plan:
    """A schedule's plan of one round; see :class:`fedlit.core.messages.Round`.

    Raises:
        ConfigError: The window is no whole number above 0, the factor below 0, or there is no such unit.
    """

    stage: int
    lr_factor: NonNegative
    window: Count
    unit: Unit
    first_of_stage: bool
    last_of_stage: bool
    restarts: bool = False


class Schedule(Checked):
    """Base class of schedules: pure functions from a round's index to its plan, so a resume needs no state.

    Attributes:
        rounds: Number of rounds that it describes, None if it has no end.
        notice: How it was rounded, for the user, or "".
    """

    rounds: int | None = None
    notice: str = ""

    def plan(self, index: int) -> Plan:
        """Return the plan of the round with this index, from 0."""
        raise NotImplementedError
