"""What each round does: its stage, learning rate and communication window."""

import math
from dataclasses import dataclass
from typing import Literal

from fedlit.core.argument_types import checked
from fedlit.core.errors import ConfigError
from fedlit.core.schedule import Plan, Schedule, Unit


@checked
@dataclass
class Stage:
    """A stretch of rounds with one learning rate and one window: eta_s, I_s, and R_s or T_s of a paper's stage list.

    Args:
        rounds: Length R of the stage in communication rounds; or give iterations.
        window: Communication window I, local work between two communications.
        unit: Unit of the window: local ``steps``, or ``epochs``, passes over a client's data.
        lr_factor: Factor of the optimizer's learning rates.
        iterations: Length T of the stage in local steps, a multiple of the window; or give rounds.
    """

    rounds: int | None = None
    window: int = 1
    unit: Unit = "epochs"
    lr_factor: float = 1.0
    iterations: int | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"schedule: window must be at least 1, found {self.window}")
        if not self.lr_factor > 0:
            raise ConfigError(f"schedule: lr_factor must be above 0, found {self.lr_factor}")
        if (self.rounds is None) == (self.iterations is None):
            raise ConfigError("schedule: a stage has either rounds or iterations; give one of them")
        if self.iterations is not None:
            if self.unit != "steps":
                raise ConfigError(
                    f"schedule: iterations are local steps, the window is in {self.unit}; say unit: steps"
                )
            self.rounds = _whole_rounds(self.iterations, self.window)
        if self.rounds < 1:
            raise ConfigError(f"schedule: rounds must be at least 1, found {self.rounds}")


class ConstantSchedule(Schedule):
    """The same window and learning rate in every round.

    Args:
        window: Communication window, local work between two communications.
        unit: Unit of the window: local ``steps``, or ``epochs``, passes over a client's data.
    """

    def __init__(self, window: int = 1, unit: Unit = "epochs") -> None:
        self.window, self.unit = window, unit
        self._stage = Stage(1, window, unit)

    def plan(self, index: int) -> Plan:
        """Return the same plan for every round."""
        return Plan(0, 1.0, self._stage.window, self._stage.unit, index == 0, False)


class StageSchedule(Schedule):
    """A list of stages; rounds beyond the last go on with it. What lives for a stage restarts with each.

    Args:
        stages: The stages, in order.

    Raises:
        ConfigError: no stages, or a stage whose iterations are no multiple of its window.
    """

    def __init__(self, stages: list[Stage]) -> None:
        if not stages:
            raise ConfigError(f"{type(self).__name__}: expected at least one stage")
        self.stages = stages
        self.rounds = sum(stage.rounds for stage in stages)

    def plan(self, index: int) -> Plan:
        """Return the plan of the stage in which the round lies."""
        start = 0
        for number, stage in enumerate(self.stages):  # noqa: B007
            if index < start + stage.rounds:
                break
            start += stage.rounds
        else:
            start -= stage.rounds
        last = index == start + stage.rounds - 1
        return Plan(number, stage.lr_factor, stage.window, stage.unit, index == start, last, restarts=True)


class PracticeSchedule(Schedule):
    """The schedule of FDAM's experiments (Yuan et al., ICML 2021, section 6): one window, a rate that falls by steps.

    The learning rate is divided by ``decay`` after every ``decay_every`` iterations, and a new stage begins there. As
    both change at a communication, they do so at the first one at or after each multiple of ``decay_every``; the total
    is rounded up to whole windows. Control variates live on from stage to stage (with large windows a stage has two to
    four rounds, in which they could not form).

    Args:
        window: Communication window I, local steps between two communications.
        iterations: Local steps of each client in all.
        decay_every: Local steps T0 of a stage.
        decay: What the learning rate is divided by after each stage.
    """

    def __init__(self, window: int = 32, iterations: int = 20000, decay_every: int = 2000, decay: float = 3.0) -> None:
        for name, value in (("window", window), ("iterations", iterations), ("decay_every", decay_every)):
            if value < 1:
                raise ConfigError(f"PracticeSchedule.{name}: expected at least 1, found {value}")
        if not decay >= 1:
            raise ConfigError(f"PracticeSchedule.decay: expected at least 1, found {decay}")
        self.window, self.decay_every, self.decay = window, decay_every, decay
        self.rounds = math.ceil(iterations / window)
        if self.rounds * window > iterations:
            self.notice = (
                f"{iterations:,} iterations are no multiple of the window {window}: rounded up to "
                f"{self.rounds * window:,} ({self.rounds:,} rounds)"
            )

    def plan(self, index: int) -> Plan:
        """Return the plan of a round; its stage follows from the local steps before it."""
        before, stage, after = (max(i, 0) * self.window // self.decay_every for i in (index - 1, index, index + 1))
        first = index == 0 or stage != before
        return Plan(stage, self.decay**-stage, self.window, "steps", first, after != stage)


class CosineSchedule(Schedule):
    """The learning rate rises in a line over the warm-up, then falls along half a cosine; the window stays the same.

    With r = 0, 1, ... the round, W the warm-up and R all rounds, the factor is ``(r + 1) / (W + 1)`` for r < W, then
    ``final + (1 - final) (1 + cos(pi (r - W) / (R - W))) / 2`` (SGDR without restarts, Loshchilov and Hutter, ICLR 2017,
    eq. 5): what torch's LinearLR and CosineAnnealingLR give that are stepped once a round.

    Args:
        rounds: Number R of rounds.
        warm_up: Number W of rounds of the warm-up, below R; 0 is none.
        final: Factor towards which the rate falls, in [0, 1].
        window: Communication window, local work between two communications.
        unit: Unit of the window: local ``steps``, or ``epochs``, passes over a client's data.

    Raises:
        ConfigError: an argument outside of its range.
    """

    def __init__(
        self, rounds: int, warm_up: int = 0, final: float = 0.0, window: int = 1, unit: Unit = "epochs"
    ) -> None:
        if not 0 <= warm_up < rounds:
            raise ConfigError(f"CosineSchedule.warm_up: expected 0 to {rounds - 1} of {rounds} rounds, found {warm_up}")
        if not 0 <= final <= 1:
            raise ConfigError(f"CosineSchedule.final: expected a factor in [0, 1], found {final}")
        self.rounds, self.warm_up, self.final = rounds, warm_up, final
        self.window, self.unit = window, unit
        self._stage = Stage(rounds, window, unit)

    def plan(self, index: int) -> Plan:
        """Return the plan of a round, with the factor of its learning rate; one beyond the last has that of the last."""
        at = min(index, self.rounds - 1)
        if at < self.warm_up:
            factor = (at + 1) / (self.warm_up + 1)
        else:
            passed = (at - self.warm_up) / (self.rounds - self.warm_up)
            factor = self.final + (1 - self.final) * (1 + math.cos(math.pi * passed)) / 2
        return Plan(0, factor, self.window, self.unit, index == 0, index == self.rounds - 1)


class TheorySchedule(StageSchedule):
    """The schedules of FDAM's Theorems 1 and 2 (Yuan et al., ICML 2021): geometric learning rates, lengths and windows.

    In stage s = 1, 2, ... the rate is ``growth**-(s-1)`` of the optimizer's and the stage lasts
    ``iterations * growth**(s-1)`` local steps. The window grows ``linear`` with the inverse rate (Theorem 2, CODASCA:
    then every stage has the same number of rounds; Theorem 1 on homogeneous data), with its square root ``sqrt``
    (Theorem 1, CODA+ on heterogeneous data), or not at all. The theorems' growth is exp(c) with a constant c of the
    problem that nobody knows; here it is given. What lives for a stage restarts with each.

    Args:
        stages: Number S of stages.
        window: Window I of the first stage, in local steps.
        iterations: Length T of the first stage, in local steps.
        growth: Factor from stage to stage, at least 1.
        window_growth: How the window grows from stage to stage: ``linear``, ``sqrt`` or ``none``.

    Raises:
        ConfigError: a stage whose iterations are no multiple of its window.
    """

    def __init__(
        self,
        stages: int = 4,
        window: int = 8,
        iterations: int = 80,
        growth: float = 4.0,
        window_growth: Literal["linear", "sqrt", "none"] = "linear",
    ) -> None:
        if not growth >= 1:
            raise ConfigError(f"TheorySchedule.growth: expected at least 1, found {growth}")
        power = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[window_growth]
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
            f"schedule: a stage of {iterations} iterations is no multiple of its window {window}: a stage ends with a "
            f"communication; use {' or '.join(map(str, near))} iterations, or another window"
        )
    return iterations // window
