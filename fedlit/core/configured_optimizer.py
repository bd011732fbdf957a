"""The optimizer that a module configures, and its scheduler."""

import math
import traceback
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import without_logger

KEYS = {"scheduler", "interval", "frequency", "name", "strict", "reduce_on_plateau", "monitor"}
"""Allowed keys of a scheduler's dict, as Lightning defines them."""


@dataclass(frozen=True)
class Configured:
    """Optimizer that ``configure_optimizers`` returned, with its scheduler.

    Attributes:
        scheduler: The scheduler of the optimizer, or None.
        interval: Unit that the scheduler counts, ``epoch`` or ``step``.
        frequency: Number of epochs per step of the scheduler.
    """

    optimizer: Optimizer
    scheduler: LRScheduler | None = None
    interval: str = "epoch"
    frequency: int = 1

    def due(self, steps: int, epochs: int) -> int:
        """Return how often the scheduler has stepped after so many training steps and passes over the images."""
        if self.scheduler is None:
            return 0
        return steps if self.interval == "step" else epochs // self.frequency


def configured_optimizer(module: nn.Module) -> Configured:
    """Call ``configure_optimizers`` once.

    Raises:
        ConfigError: It did not return one optimizer, or several schedulers, or one that cannot be followed.
    """
    name = type(module).__name__
    try:
        with without_logger():
            returned = module.configure_optimizers()
    except TrainingError as error:  # it asks for the Trainer; nothing has been trained yet
        raise ConfigError(str(error)) from error
    except ValueError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith("torch.optim"):
            raise
        raise ConfigError(f"model.optimizer: {error}") from error
    schedulers: Any = ()
    if isinstance(returned, (list, tuple)):
        nested = bool(returned) and isinstance(returned[0], (list, tuple))
        if nested and len(returned) == 2:
            schedulers = returned[1]
        optimizers = list(returned[0]) if nested else list(returned)
        if len(optimizers) != 1:
            raise ConfigError(f"{name}.configure_optimizers returned {len(optimizers)} optimizers, not one")
        returned = optimizers[0]
    if isinstance(returned, dict):
        schedulers, returned = returned.get("lr_scheduler") or schedulers, returned.get("optimizer")
    schedulers = list(schedulers) if isinstance(schedulers, (list, tuple)) else [schedulers]
    if len(schedulers) > 1:
        raise ConfigError(
            f"{name}.configure_optimizers returned {len(schedulers)} learning-rate schedulers; expected one: join "
            "them with torch.optim.lr_scheduler.SequentialLR or ChainedScheduler"
        )
    if not isinstance(returned, Optimizer):
        raise ConfigError(f"{name}.configure_optimizers returned {type(returned).__name__}; expected an optimizer")
    for group in returned.param_groups:
        for key, value in group.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"model.optimizer.{key}: expected a finite number, found {value}")
    return _scheduled(name, returned, schedulers[0]) if schedulers else Configured(returned)


def _scheduled(name: str, optimizer: Optimizer, config: Any) -> Configured:
    """Return an optimizer with its scheduler, which Lightning allows to be in a dict."""
    config = config if isinstance(config, dict) else {"scheduler": config}
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
        raise ConfigError(
            f"{name}.configure_optimizers: a federation cannot follow its {type(scheduler).__name__}: {reason}; or "
            "return only the optimizer and set federation.schedule, such as CosineSchedule"
        )
    return Configured(optimizer, scheduler, interval, frequency)
