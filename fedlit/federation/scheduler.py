"""The rounds' learning rates where a module brings a scheduler of torch."""

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fedlit.core.errors import ConfigError
from fedlit.core.module import copy_of
from fedlit.core.optimizer import optimizer_and_scheduler
from fedlit.core.schedule import Plan, Schedule
from fedlit.federation.settings import Settings

OWN = "return the optimizer alone and set federation.schedule, such as CosineSchedule"
DIGITS = 12
"""Of factors, so that those of two groups are not told apart by rounding."""

KEYS = {"scheduler", "interval", "frequency", "name", "strict", "reduce_on_plateau", "monitor"}
"""What a dict of Lightning for a scheduler may hold."""


class FollowsScheduler(Schedule):
    """A schedule, with learning rates that follow a scheduler.

    Args:
        schedule: Gives stages and windows.
        factors: Of the learning rates, for each round; rounds beyond the last have the last one's.
        scheduler: Name of the scheduler's class.
    """

    def __init__(self, schedule: Schedule, factors: Sequence[float], scheduler: str) -> None:
        self._schedule, self._factors = schedule, factors
        self.rounds = schedule.rounds
        self.notice = "; ".join(filter(None, (schedule.notice, f"learning rate: follows the model's {scheduler}")))

    def plan(self, index: int) -> Plan:
        """Return the plan of a round, with the scheduler's factor."""
        factor = self._factors[min(index, len(self._factors) - 1)]
        return replace(self._schedule.plan(index), lr_factor=factor)


@dataclass(frozen=True)
class Scheduled:
    """What ``configure_optimizers`` returned, where a scheduler is a function of a count of epochs or steps.

    Attributes:
        optimizer: Of torch.
        scheduler: Of the optimizer.
        interval: What it counts, an ``epoch`` or a ``step``.
        frequency: After how many of them it takes a step.
    """

    optimizer: Optimizer
    scheduler: LRScheduler
    interval: str
    frequency: int

    def factors(self) -> Iterator[tuple[float, ...]]:
        """Give the factors of the groups' learning rates at each epoch or step; optimizer and scheduler change.

        Raises:
            ValueError: The scheduler changes something else than rates, or has reached its end.
        """
        start, groups = _others(self.optimizer), self.optimizer.param_groups
        for count in itertools.count(1):
            yield tuple(round(float(g["lr"] / g["initial_lr"]), DIGITS) if g["initial_lr"] else 1.0 for g in groups)
            if count % self.frequency:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that no step was taken before
                self.scheduler.step()
            pairs = zip(start, _others(self.optimizer), strict=True)
            if changed := [key for before, now in pairs for key in now if before.get(key) != now[key]]:
                raise ValueError(f"it also changes {changed[0]!r}")


def scheduled(module: LightningModule) -> Scheduled | None:
    """Read the scheduler that a module returns; None where it returns none.

    Raises:
        ConfigError: It is none of torch, needs a metric, or its dict is none of Lightning's.
    """
    optimizer, config = optimizer_and_scheduler(module)
    if config is None:
        return None
    scheduler, interval, frequency = (
        config.get("scheduler"),
        config.get("interval", "epoch"),
        config.get("frequency", 1),
    )
    reason = ""
    if unknown := config.keys() - KEYS:
        reason = f"its dict also has {', '.join(sorted(map(str, unknown)))}"
    elif not isinstance(scheduler, LRScheduler):
        reason = "it is no LRScheduler of torch"
    elif isinstance(scheduler, ReduceLROnPlateau):
        reason = "its rate depends on a metric"
    elif scheduler.optimizer is not optimizer:
        reason = "it is the scheduler of another optimizer"
    elif interval not in ("epoch", "step"):
        reason = f"its interval is {interval!r}; expected 'epoch' or 'step'"
    elif not isinstance(frequency, int) or frequency < 1:
        reason = f"its frequency is {frequency!r}; expected an integer above 0"
    elif interval == "step" and frequency != 1:
        reason = "it counts steps by a frequency other than 1"
    if reason:
        raise _refusal(module, type(scheduler).__name__, reason)
    return Scheduled(optimizer, scheduler, interval, frequency)


def following_scheduler(settings: Settings, module: LightningModule, away: bool) -> Settings:
    """Give a federation's settings with a schedule that follows the scheduler of ``configure_optimizers``, if there is one.

    A round has one learning rate, as algorithms compute with it. A scheduler is therefore taken where its rate is a
    function of the number of epochs or steps alone, every group has the same factor, and no round sees two rates; then
    each client trains as with a scheduler of its own.

    Args:
        settings: Of the rounds.
        module: The model.
        away: Whether clients are at sites, which plan their rounds from the configuration.

    Raises:
        ConfigError: There is a scheduler that cannot be followed; says why, and what to do.
    """
    found = scheduled(module)
    if found is None:
        return settings
    schedule, name = settings.schedule, type(found.scheduler).__name__
    plans = [schedule.plan(index) for index in range(settings.rounds)]
    units = " and ".join(sorted({plan.unit for plan in plans}))
    reason, factors = "", []
    if away:
        reason = "sites plan their rounds from the configuration alone"
    elif any(plan.lr_factor != 1 for plan in plans):
        reason = f"{type(schedule).__name__} changes the learning rate too"
    elif settings.participation < 1:
        reason = "with participation below 1 clients have trained for different numbers of epochs"
    elif units != f"{found.interval}s":
        reason = f"its interval is one {found.interval}, and the window of federation.schedule counts {units}"
    else:
        number = sum(plan.window for plan in plans)
        counted = itertools.islice(found.factors(), number)
        other = copy_of(module)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.rand(1)
            for parameter in other.parameters():
                parameter.mul_(1.5)
            again = scheduled(other)
        try:
            counted = list(counted)
            if again is None or counted != list(itertools.islice(again.factors(), number)):
                raise ValueError("its rate depends on the weights, or on chance, and not on a count alone")
            counted = iter(counted)
            factors = [_factor(list(itertools.islice(counted, plan.window)), found.interval) for plan in plans]
        except ValueError as error:
            reason = str(error)
    if reason:
        raise _refusal(module, name, reason)
    settings = copy.copy(settings)
    settings.schedule = FollowsScheduler(schedule, factors, name)
    return settings


def _others(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{k: copy.deepcopy(v) for k, v in g.items() if k not in ("params", "lr")} for g in optimizer.param_groups]


def _factor(seen: Sequence[tuple[float, ...]], interval: str) -> float:
    """The one factor of a round, of all its epochs or steps and of all groups.

    Raises:
        ValueError: There are several.
    """
    if len(set(seen)) > 1:
        raise ValueError(
            f"its rate changes within a round of {len(seen)} {interval}s, and a round has one; set the schedule's window to how often "
            "it changes"
        )
    if len(set(seen[0])) > 1:
        raise ValueError(f"it gives the parameter groups different factors, {', '.join(f'{f:g}' for f in seen[0])}")
    if not math.isfinite(seen[0][0]):
        raise ValueError(f"its rate becomes {seen[0][0]} times the first")
    if seen[0][0] < 0:
        raise ValueError(f"its rate becomes negative, {seen[0][0]:g} times the first")
    return seen[0][0]


def _refusal(module: LightningModule, scheduler: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{type(module).__name__}.configure_optimizers returned {scheduler}, which a federation cannot follow: {reason}; or {OWN}"
    )
