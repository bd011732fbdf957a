"""Optimizers and algorithms whose rounds use all of their batches alike; a site with floors accepts no others.

A round of many batches can still send the gradient of one: with ``dampening: 1`` only the first batch moves the
momentum, with a learning rate that decays within the round only the first steps count, and with a strong pull towards
the start only the last.
"""

from collections.abc import Sequence
from inspect import Parameter, signature

import torch
from torch.optim import Optimizer

from fedlit.aggregators.momentum import LocalSGDAM
from fedlit.core.aggregator import Aggregator
from fedlit.core.configured_optimizer import Configured

MOMENTUM, BETAS, EPS, DECAY = (0.0, 0.99), ((0.0, 0.99), (0.9, 0.9999)), (1e-10, 1e-3), (0.0, 1.0)

RANGES: dict[type[Optimizer], dict[str, tuple]] = {
    torch.optim.SGD: {"momentum": MOMENTUM, "weight_decay": DECAY, "nesterov": (0, 1)},
    torch.optim.Adam: {"betas": BETAS, "eps": EPS, "weight_decay": DECAY, "decoupled_weight_decay": (0, 1)},
    torch.optim.AdamW: {"betas": BETAS, "eps": EPS, "weight_decay": DECAY, "decoupled_weight_decay": (0, 1)},
    torch.optim.RAdam: {"betas": BETAS, "eps": EPS, "weight_decay": DECAY, "decoupled_weight_decay": (0, 1)},
    torch.optim.NAdam: {"betas": BETAS, "eps": EPS, "weight_decay": DECAY, "decoupled_weight_decay": (0, 1)},
    torch.optim.RMSprop: {"alpha": (0.9, 0.9999), "eps": EPS, "momentum": MOMENTUM, "weight_decay": DECAY},
    torch.optim.Adagrad: {"eps": EPS, "weight_decay": DECAY},
}
"""Arguments of each accepted optimizer that may differ from their defaults, with their ranges."""

HOW = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
"""Entries of a parameter group that say how a step is computed, and rates, which are checked for each round."""

RATE = 1.0
"""Largest learning rate of a step."""

SHRINKING = 0.1
"""Largest share of the way back to the start, or to zero, that a step takes."""

PULLS = ("mu", "alpha", "gamma")
"""Attributes of the shipped algorithms with the strength of a pull."""


def optimizer_fault(made: Configured, aggregators: Sequence[Aggregator], allowed: Sequence[str]) -> str:
    """Return why a round with them could send less than all of its batches, or ""; ``allowed`` classes are trusted."""
    optimizer = made.optimizer
    few = [_path(type(each)) for each in aggregators if isinstance(each, LocalSGDAM)]
    if few and few[0] not in allowed:
        return f"{few[0]} sends a moving average of the gradients of its last batches"
    if _path(type(optimizer)) in allowed:
        return ""
    ranges = RANGES.get(type(optimizer))
    if ranges is None:
        return f"optimizer: expected one of {', '.join(c.__name__ for c in RANGES)}, found {type(optimizer).__name__}"
    named = signature(type(optimizer)).parameters
    for group in optimizer.param_groups:
        for name, value in group.items():
            default = named[name].default if name in named else Parameter.empty
            if name in HOW or value == default or (default is Parameter.empty and not value):
                continue
            if name not in ranges or not _within(value, ranges[name]):
                wanted = ranges.get(name, default)
                return f"{type(optimizer).__name__}.{name}: expected {wanted}, found {value}"
    return ""


def rate_fault(made: Configured, aggregators: Sequence[Aggregator], factor: float) -> str:
    """Return why the steps of a round are too large, or ""; ``factor`` multiplies the optimizer's rates."""
    groups = made.optimizer.param_groups
    rate = max(float(group["lr"]) for group in groups) * factor
    if rate > RATE:
        return f"the learning rate: expected at most {RATE:g}, found {rate:g}"
    pulls = [
        float(getattr(each, name, 0.0) or 0.0)
        for each in aggregators
        for name in PULLS
        if "pull" in str(getattr(each, "governs", ""))
    ]
    strength = sum(pulls) + max(float(group.get("weight_decay", 0.0)) for group in groups)
    if rate * strength > SHRINKING:
        return (
            f"the learning rate times the strength of weight decay and pulls: expected at most {SHRINKING:g}, found "
            f"{rate * strength:g}"
        )
    return ""


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _within(value: object, wanted: tuple) -> bool:
    if isinstance(value, tuple | list):
        return len(value) == len(wanted) and all(map(_within, value, wanted))
    return wanted[0] <= float(value) <= wanted[1]
