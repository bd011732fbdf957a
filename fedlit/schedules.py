"""Schedules: the stage, learning rate and communication window of each round."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fedlit.core.errors import ConfigError
from fedlit.core.ranges import AtLeastOne, Count, NonNegativeInt, Positive, Probability
from fedlit.core.schedule import Plan, Schedule, Unit
from fedlit.core.system.argument_types import checked

_planned = lru_cache(1024, typed=True)(Plan)
"""Makes and checks a plan once: thousands of rounds have few."""


@checked
@dataclass
class Stage:
    """Consecutive rounds with one learning rate and one window: eta_s, I_s, and R_s or T_s of a paper's stage list.

    Args:
        rounds: Length R of the stage in communication rounds; or pass iterations.
        window: Communication window I, local work between two communications.
        unit: Unit of the window: local ``steps``, or ``epochs``, passes over a client's data.
        lr_factor: Factor of the optimizer's learning rates.
        iterations: Length T of the stage in local steps, a multiple of the window; or pass rounds.
    """

    rounds: Count | None = None
    window: Count = 1
    unit: Unit = "epochs"
    lr_factor: Positive = 1.0
    iterations: Count | None = None

    def __post_init__(self) -> None:
        if (self.rounds is None) == (self.iterations is None):
            raise ConfigError("schedule: a stage has either rounds or iterations; set one of them")
        if self.iterations is not None:
            if self.unit != "steps":
                raise ConfigError(
                    f"schedule: iterations are local steps, but the window is in {self.unit}; set unit: steps"
                )
            self.rounds = _whole_rounds(self.iterations, self.window)


class ConstantSchedule(Schedule):
    """The same window and learning rate in every round.

    Args:
        window: Communication window, local work between two communications.
        unit: Unit of the window: local ``steps``, or ``epochs``, passes over a client's data.
    """

    def __init__(self, window: Count = 1, unit: Unit = "epochs") -> None:
        self.window, self.unit = window, unit
        self._stage = Stage(1, window, unit)

    def plan(self, index: int) -> Plan:
        """Return the same plan for every round."""
        return _planned(0, 1.0, self._stage.window, self._stage.unit, index == 0, False)


class StageSchedule(Schedule):
    """A list of stages; rounds after the last stage continue it. Algorithms reset their state of a stage with each.

    Args:
        stages: The stages, in order.

    Raises:
        ConfigError: There are no stages, or a stage's iterations are not a multiple of its window.
    """

    def __init__(self, stages: list[Stage]) -> None:
        if not stages:
            raise ConfigError(f"{type(self).__name__}: expected at least one stage")
        self.stages = stages
        self.rounds = sum(stage.rounds or 0 for stage in stages)

    def plan(self, index: int) -> Plan:
        """Return the plan of the round's stage."""
        start = length = 0
        for number, stage in enumerate(self.stages):  # noqa: B007
            length = stage.rounds or 0
            if index < start + length:
                break
            start += length
        else:
            start -= length
        last = index == start + length - 1
        return _planned(number, stage.lr_factor, stage.window, stage.unit, index == start, last, restarts=True)


class PracticeSchedule(Schedule):
    """The schedule of FDAM's experiments (Yuan et al., ICML 2021, section 6): one window, a rate that falls in steps.

    The learning rate is divided by ``decay`` after every ``decay_every`` iterations, and a new stage begins there. Both
    change at a communication, so they do so at the first one at or after each multiple of ``decay_every``; the total is
    rounded up to whole windows. Control variates are kept from stage to stage (with large windows a stage has two to
    four rounds, too few for them to form).

    Args:
        window: Communication window I, local steps between two communications.
        iterations: Total number of local steps of each client.
        decay_every: Local steps T0 of a stage.
        decay: Divisor of the learning rate after each stage.
    """

    rounds: int

    def __init__(
        self, window: Count = 32, iterations: Count = 20000, decay_every: Count = 2000, decay: AtLeastOne = 3.0
    ) -> None:
        self.window, self.decay_every, self.decay = window, decay_every, decay
        self.rounds = math.ceil(iterations / window)
        if self.rounds * window > iterations:
            self.notice = (
                f"{iterations:,} iterations are not a multiple of the window {window}: rounded up to "
                f"{self.rounds * window:,} ({self.rounds:,} rounds)"
            )

    def plan(self, index: int) -> Plan:
        """Return the plan of a round; its stage follows from the local steps before it."""
        before, stage, after = (max(i, 0) * self.window // self.decay_every for i in (index - 1, index, index + 1))
        first = index == 0 or stage != before
        return _planned(stage, self.decay**-stage, self.window, "steps", first, after != stage)


class CosineSchedule(Schedule):
    """Linear warm-up of the learning rate, then a decrease along half a cosine; the window is constant.

    With r = 0, 1, ... the round, W the warm-up and R all rounds, the factor is ``(r + 1) / (W + 1)`` for r < W, then
    ``final + (1 - final) (1 + cos(pi (r - W) / (R - W))) / 2`` (SGDR without restarts, Loshchilov and Hutter, ICLR
    2017, eq. 5). This equals torch's LinearLR and CosineAnnealingLR, stepped once per round.

    Args:
        rounds: Number R of rounds.
        warm_up: Number W of rounds of the warm-up, below R; 0 for none.
        final: Factor towards which the rate falls, in [0, 1].
        window: Communication window, local work between two communications.
        unit: Unit of the window: local ``steps``, or ``epochs``, passes over a client's data.

    Raises:
        ConfigError: An argument is out of range.
    """

    rounds: int

    def __init__(
        self,
        rounds: Count,
        warm_up: NonNegativeInt = 0,
        final: Probability = 0.0,
        window: Count = 1,
        unit: Unit = "epochs",
    ) -> None:
        if warm_up >= rounds:
            raise ConfigError(f"CosineSchedule.warm_up: expected 0 to {rounds - 1} of {rounds} rounds, found {warm_up}")
        self.rounds, self.warm_up, self.final = rounds, warm_up, final
        self.window, self.unit = window, unit
        self._stage = Stage(rounds, window, unit)

    def plan(self, index: int) -> Plan:
        """Return the plan of a round, with its factor of the learning rate; rounds after the last repeat it."""
        at = min(index, self.rounds - 1)
        if at < self.warm_up:
            factor = (at + 1) / (self.warm_up + 1)
        else:
            passed = (at - self.warm_up) / (self.rounds - self.warm_up)
            factor = self.final + (1 - self.final) * (1 + math.cos(math.pi * passed)) / 2
        return _planned(0, factor, self.window, self.unit, index == 0, index == self.rounds - 1)


MOST_STAGES = 10_000
"""Largest number of stages, each of which takes memory."""


class TheorySchedule(StageSchedule):
    """The schedules of FDAM's Theorems 1 and 2 (Yuan et al., ICML 2021): geometric rates, lengths and windows.

    In stage s = 1, 2, ... the rate is ``growth**-(s-1)`` of the optimizer's and the stage lasts ``iterations *
    growth**(s-1)`` local steps. The window grows ``linear`` with the inverse rate (Theorem 2, CODASCA: then every stage
    has the same number of rounds; Theorem 1 on homogeneous data), with its square root ``sqrt`` (Theorem 1, CODA+ on
    heterogeneous data), or not at all. The theorems' growth is exp(c) with an unknown constant c of the problem; here
    it is an argument. Algorithms reset their state of a stage with each.

    Args:
        stages: Number S of stages.
        window: Window I of the first stage, in local steps.
        iterations: Length T of the first stage, in local steps.
        growth: Factor from stage to stage, at least 1.
        window_growth: Growth of the window from stage to stage: ``linear``, ``sqrt`` or ``none``.

    Raises:
        ConfigError: A stage's iterations are not a multiple of its window.
    """

    def __init__(
        self,
        stages: Count = 4,
        window: Count = 8,
        iterations: Count = 80,
        growth: AtLeastOne = 4.0,
        window_growth: Literal["linear", "sqrt", "none"] = "linear",
    ) -> None:
        power = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[window_growth]
        if stages > MOST_STAGES:
            raise ConfigError(f"schedule.stages: expected at most {MOST_STAGES}, found {stages}")
        windows = [round(window * growth ** (power * s)) for s in range(stages)]
        super().__init__(
            [
                Stage(window=longer, unit="steps", lr_factor=growth**-s, iterations=round(iterations * growth**s))
                for s, longer in enumerate(windows)
            ]
        )


def _whole_rounds(iterations: int, window: int) -> int:
    if iterations % window:
        near = [n for n in (iterations // window * window, -(-iterations // window) * window) if n]
        raise ConfigError(
            f"schedule: a stage of {iterations} iterations is not a multiple of its window {window}, but stages end "
            f"with a communication; use {' or '.join(map(str, near))} iterations, or another window"
        )
    return iterations // window
