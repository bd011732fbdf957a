"""Values that a module logs with ``self.log``: from its steps to one value per round."""

import re
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, Literal

import torch
from torchmetrics import Metric

from fedlit.core.errors import TrainingError

Key = str | tuple[str, float]
"""A name, with the weight of its values if the module gave one (``batch_size``)."""

STAGES = {"train": r"^train(ing)?[_/.\- ]+(?=.)", "val": r"^val(id(ation)?)?[_/.\- ]+(?=.)"}
"""Prefixes with which modules name the values of a stage."""


def metric_names(names: Iterable[str], stage: Literal["train", "val"], taken: Container[str]) -> dict[str, str]:
    """Return the name of each logged value in the metrics of a stage, which have a prefix already.

    ``val_loss`` becomes ``loss``. A value keeps its own name if fedlit has ``taken`` the short one, or if the module
    logs two values that would share it.
    """
    short = {name: re.sub(STAGES[stage], "", name) for name in names}
    logged = Counter(short.values())
    return {name: each if logged[each] == 1 and each not in taken else name for name, each in short.items()}


def logged_key(
    module: str, name: str, on_step: bool | None, on_epoch: bool | None, reduce_fx: Any, weight: Any
) -> Key | None:
    """Return the key under which a value is collected, or None if Lightning would not keep it.

    Raises:
        TrainingError: The module asks for something other than the mean over a round.
    """
    if on_step is False and on_epoch is False:
        return None
    per_step = on_epoch is False or (on_step and not on_epoch)
    if per_step or (reduce_fx not in ("mean", torch.mean)):
        how = "per step only" if per_step else f"with reduce_fx={getattr(reduce_fx, '__name__', reduce_fx)!r}"
        fix = "set on_epoch=True" if per_step else "log its mean, or for a sum a SumMetric of torchmetrics"
        raise TrainingError(f"{module} logs {name!r} {how}, but a round has one mean: {fix}")
    return name if weight is None else (name, float(weight))


def weighed(logged: dict[Key, list[Any]]) -> dict[str, tuple[float, float]]:
    """Return the mean of each name, and the sum of its weights; 0 if it has none."""
    parts: dict[str, list[tuple[float, list[Any]]]] = {}
    for key, values in logged.items():
        name, weight = (key, 0.0) if isinstance(key, str) else key
        parts.setdefault(name, []).append((weight, values))
    means = {}
    for name, groups in parts.items():
        values = torch.stack([torch.as_tensor(v, dtype=torch.float64) for _, vs in groups for v in vs])
        weights = torch.tensor([weight or 1.0 for weight, vs in groups for _ in vs], dtype=torch.float64)
        even = bool((weights == weights[0]).all())
        mean = values.mean() if even else (values.reshape(-1) * weights).sum() / weights.sum()
        means[name] = float(mean), sum(weight * len(vs) for weight, vs in groups)
    return means


def value_of(name: str, metric: Metric) -> float:
    """Compute a metric over all updates.

    Raises:
        TrainingError: The result is not one number.
    """
    value = metric.compute()
    if not torch.is_tensor(value) or value.numel() != 1:
        found = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        raise TrainingError(
            f"{name!r} is logged as a {type(metric).__name__}: expected one number, found {found}; log each element"
        )
    return float(value)


def copy_of(metric: Metric) -> Metric:
    """Copy a metric with its states, without the graphs of the steps that updated it."""
    for name in metric._defaults:
        state = getattr(metric, name)
        setattr(metric, name, [each.detach() for each in state] if isinstance(state, list) else state.detach())
    return metric.clone().cpu()
