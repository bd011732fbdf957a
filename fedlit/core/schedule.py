"""The interface of a schedule: what a round does, by its index."""

from dataclasses import dataclass
from typing import Literal

from fedlit.core.argument_types import Checked

Unit = Literal["steps", "epochs"]


@dataclass(frozen=True)
class Plan:
    """The schedule's word on one round; see :class:`fedlit.core.messages.Round`."""

    stage: int
    lr_factor: float
    window: int
    unit: Unit
    first_of_stage: bool
    last_of_stage: bool
    restarts: bool = False


class Schedule(Checked):
    """Maps the index of a round to its plan; a pure function, so that a resume needs no state.

    Attributes:
        rounds: how many rounds it describes, None where it has no end.
        notice: what the user should know of how it was rounded.
    """

    rounds: int | None = None
    notice: str = ""

    def plan(self, index: int) -> Plan:
        """Return what the round of this index, from 0, does."""
        raise NotImplementedError
