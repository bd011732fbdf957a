"""The optimizer that a module configures."""

import math
import traceback
from typing import Any

from torch import nn
from torch.optim import Optimizer

from fedlit.core.errors import ConfigError

NOT_ELEMENTWISE = {
    "LBFGS": "it needs a closure",
    "Adafactor": "it factors each weight matrix",
    "Muon": "it orthogonalises each weight matrix",
    "SparseAdam": "it needs sparse gradients",
    **dict.fromkeys(("LARS", "Lars", "LAMB", "Lamb"), "its rate depends on the norm of each layer"),
}

HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes of an optimizer that hold hooks of its steps."""


def single_optimizer(module: nn.Module) -> Optimizer:
    """Call ``configure_optimizers`` once and leave its scheduler out: the federation applies it between rounds.

    Raises:
        ConfigError: It did not return one elementwise optimizer, with or without a scheduler.
    """
    optimizer, config = optimizer_and_scheduler(module)
    if config is not None:
        for group in optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
    return optimizer


def optimizer_and_scheduler(module: nn.Module) -> tuple[Optimizer, dict[str, Any] | None]:
    """Call ``configure_optimizers`` once: return one optimizer, and Lightning's dict of its scheduler, or None.

    Raises:
        ConfigError: It did not return one elementwise optimizer, or returned several schedulers.
    """
    name = type(module).__name__
    try:
        configured = module.configure_optimizers()
    except ValueError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith("torch.optim"):
            raise
        raise ConfigError(f"model.optimizer: {error}", key="optimizer-refuses-arguments") from error
    schedulers: Any = ()
    if isinstance(configured, (list, tuple)):
        nested = bool(configured) and isinstance(configured[0], (list, tuple))
        if nested and len(configured) == 2:
            schedulers = configured[1]
        optimizers = list(configured[0]) if nested else list(configured)
        if len(optimizers) != 1:
            raise ConfigError(
                f"{name}.configure_optimizers returned {len(optimizers)} optimizers, not one", key="several-optimizers"
            )
        configured = optimizers[0]
    if isinstance(configured, dict):
        schedulers, configured = configured.get("lr_scheduler") or schedulers, configured.get("optimizer")
    schedulers = list(schedulers) if isinstance(schedulers, (list, tuple)) else [schedulers]
    if len(schedulers) > 1:
        raise ConfigError(
            f"{name}.configure_optimizers returned {len(schedulers)} learning-rate schedulers; expected one: join "
            "them with torch.optim.lr_scheduler.SequentialLR or ChainedScheduler",
            key="several-schedulers",
        )
    if not isinstance(configured, Optimizer):
        raise ConfigError(
            f"{name}.configure_optimizers returned {type(configured).__name__}; expected an optimizer",
            key="optimizer-missing",
        )
    reason = NOT_ELEMENTWISE.get(type(configured).__name__)
    if reason:
        raise ConfigError(
            f"{type(configured).__name__} cannot work on the flat vector: {reason}; use SGD or Adam",
            key="optimizer-unsupported",
        )
    for group in configured.param_groups:
        for key, value in group.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(
                    f"model.optimizer.{key}: expected a finite number, found {value}", key="optimizer-value-not-finite"
                )
        if len({id(parameter) for parameter in group["params"]}) < len(group["params"]):
            raise ConfigError(
                f"{name}.configure_optimizers: a group has a parameter twice; give the optimizer each one once",
                key="optimizer-parameter-twice",
            )
    config = schedulers[0] if schedulers else None
    return configured, config if config is None or isinstance(config, dict) else {"scheduler": config}
