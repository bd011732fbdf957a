"""Learning rates of rounds that follow a module's scheduler of torch."""

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

from fedlit.core.configured_optimizer import optimizer_and_scheduler
from fedlit.core.errors import ConfigError
from fedlit.core.module import copy_of
from fedlit.core.schedule import Plan, Schedule
from fedlit.federation.settings import Settings

ADVICE = "return only the optimizer and set federation.schedule, such as CosineSchedule"
DIGITS = 12
"""Digits of factors, so that rounding does not make the factors of two groups different."""

KEYS = {"scheduler", "interval", "frequency", "name", "strict", "reduce_on_plateau", "monitor"}
"""Allowed keys of a scheduler's dict, as Lightning defines them."""


class FollowsScheduler(Schedule):
    """A schedule whose learning rates follow a scheduler; after the last of the factors it stays."""

    def __init__(self, schedule: Schedule, factors: Sequence[float], scheduler: str) -> None:
        self._schedule, self._factors = schedule, factors
        self.rounds = schedule.rounds
        self.notice = "; ".join(filter(None, (schedule.notice, f"learning rate: follows the model's {scheduler}")))

    def plan(self, index: int) -> Plan:
        """Return the plan of a round, with the factor of the scheduler."""
        factor = self._factors[min(index, len(self._factors) - 1)]
        return replace(self._schedule.plan(index), lr_factor=factor)


@dataclass(frozen=True)
class Scheduled:
    """An optimizer and its scheduler, whose rate depends only on the number of epochs or steps.

    Attributes:
        interval: Unit that the scheduler counts, ``epoch`` or ``step``.
        frequency: Number of these units per step of the scheduler.
    """

    optimizer: Optimizer
    scheduler: LRScheduler
    interval: str
    frequency: int

    def factors(self) -> Iterator[tuple[float, ...]]:
        """Yield the groups' learning-rate factors of each epoch or step; this changes optimizer and scheduler.

        Raises:
            ValueError: The scheduler changes something other than rates, has a rate that is not finite, or has reached
                its end.
        """
        start, groups = _others(self.optimizer), self.optimizer.param_groups
        for count in itertools.count(1):
            rates = tuple(round(float(g["lr"] / g["initial_lr"]), DIGITS) if g["initial_lr"] else 1.0 for g in groups)
            for rate in rates:
                if not math.isfinite(rate):
                    raise ValueError(f"its rate becomes {rate} times the first")
            yield rates
            if count % self.frequency:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a scheduler step before the first optimizer step
                self.scheduler.step()
            pairs = zip(start, _others(self.optimizer), strict=True)
            if changed := [key for before, now in pairs for key in now if before.get(key) != now[key]]:
                raise ValueError(f"it also changes {changed[0]!r}")


def scheduled(module: LightningModule) -> Scheduled | None:
    """Return the scheduler of a module, or None if it has none.

    Raises:
        ConfigError: The scheduler is not from torch, needs a metric, or its dict is invalid.
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
        reason = "it is not an LRScheduler of torch"
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
    """Return settings whose schedule follows the scheduler of ``configure_optimizers``, if there is one.

    Algorithms compute with one learning rate per round. A scheduler is therefore supported if its rate depends only on
    the number of epochs or steps, all groups have the same factor, and the rate is constant within each round. Each
    client then trains as it would with its own scheduler.

    Raises:
        ConfigError: The scheduler is not supported; gives the reason and the fix.
    """
    lr_scheduler = scheduled(module)
    if lr_scheduler is None:
        return settings
    schedule, name = settings.schedule, type(lr_scheduler.scheduler).__name__
    plans = [schedule.plan(index) for index in range(settings.rounds)]
    units = " and ".join(sorted({plan.unit for plan in plans}))
    reason, factors = "", []
    if away:
        reason = "sites plan their rounds only from the configuration"
    elif any(plan.lr_factor != 1 for plan in plans):
        reason = f"{type(schedule).__name__} also changes the learning rate"
    elif settings.participation != 1:
        reason = "with participation below 1 clients have trained for different numbers of epochs"
    elif units != f"{lr_scheduler.interval}s":
        reason = f"its interval is one {lr_scheduler.interval}, but the window of federation.schedule counts {units}"
    else:
        number, again = sum(plan.window for plan in plans), _scheduled_again(module)
        try:
            counted = list(itertools.islice(lr_scheduler.factors(), number))
            if again is None or counted != list(itertools.islice(again.factors(), number)):
                raise ValueError("its rate depends on the weights, or on chance, and not only on a count")
            left = iter(counted)
            factors = [_factor(list(itertools.islice(left, plan.window)), lr_scheduler.interval) for plan in plans]
        except ValueError as error:
            reason = str(error)
    if reason:
        raise _refusal(module, name, reason)
    settings = copy.copy(settings)
    settings.schedule = FollowsScheduler(schedule, factors, name)
    return settings


def _scheduled_again(module: LightningModule) -> Scheduled | None:
    """Return the scheduler that the module creates with other weights and another random state."""
    other = copy_of(module)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.rand(1)
        for parameter in other.parameters():
            parameter.mul_(1.5)
        return scheduled(other)


def _others(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{k: copy.deepcopy(v) for k, v in g.items() if k not in ("params", "lr")} for g in optimizer.param_groups]


def _factor(seen: Sequence[tuple[float, ...]], interval: str) -> float:
    """Return the factor of a round; refuse different ones for its epochs or steps, or for the groups."""
    if len(set(seen)) > 1:
        raise ValueError(
            f"its rate changes within a round of {len(seen)} {interval}s, but a round has only one rate; set the "
            "schedule's window to the interval between changes"
        )
    if len(set(seen[0])) > 1:
        raise ValueError(f"it has different factors for the parameter groups, {', '.join(f'{f:g}' for f in seen[0])}")
    if seen[0][0] < 0:
        raise ValueError(f"its rate becomes negative, {seen[0][0]:g} times the first")
    return seen[0][0]


def _refusal(module: LightningModule, scheduler: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{type(module).__name__}.configure_optimizers: a federation cannot follow its {scheduler}: {reason}; "
        f"or {ADVICE}",
        key="scheduler-not-followed",
    )
