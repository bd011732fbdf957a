"""What a module hands to ``self.log``, from its steps to one value a round."""

from collections.abc import Sequence
from typing import Any

import torch
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum

from fedlit.core.errors import TrainingError

MERGING = (dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum)
"""How states of a metric come together exactly."""

Key = str | tuple[str, float]
"""A name, and the weight of its values where the module gave one (``batch_size``)."""


def key_of(
    module: str, name: str, on_step: bool | None, on_epoch: bool | None, reduce_fx: Any, weight: Any
) -> Key | None:
    """Say under what a value is collected; None where Lightning would keep nothing of it.

    Raises:
        TrainingError: It asks for something else than the mean over a round.
    """
    if on_step is False and on_epoch is False:
        return None
    alone = on_epoch is False or (on_step and not on_epoch)
    if alone or (reduce_fx not in ("mean", torch.mean)):
        asked = "each step's value alone" if alone else f"reduce_fx={getattr(reduce_fx, '__name__', reduce_fx)!r}"
        fix = "set on_epoch=True" if alone else "log its mean, or for a sum a SumMetric of torchmetrics"
        raise TrainingError(f"{module} logs {name!r} with {asked}, and a federation keeps one mean a round: {fix}")
    return name if weight is None else (name, float(weight))


def weighed(logged: dict[Key, list[Any]]) -> dict[str, tuple[float, float]]:
    """Give the mean of each name, and the sum of the weights that were given; 0 where none was."""
    parts: dict[str, list[tuple[float, list[Any]]]] = {}
    for key, values in logged.items():
        name, weight = (key, 0.0) if isinstance(key, str) else key
        parts.setdefault(name, []).append((weight, values))
    found = {}
    for name, groups in parts.items():
        values = torch.stack([torch.as_tensor(v, dtype=torch.float64) for _, vs in groups for v in vs])
        weights = torch.tensor([weight or 1.0 for weight, vs in groups for _ in vs], dtype=torch.float64)
        even = bool((weights == weights[0]).all())
        mean = values.mean() if even else (values.reshape(-1) * weights).sum() / weights.sum()
        found[name] = float(mean), sum(weight * len(vs) for weight, vs in groups)
    return found


def value_of(name: str, metric: Metric) -> float:
    """Compute a metric over all that it has seen.

    Raises:
        TrainingError: It is not one number.
    """
    value = metric.compute()
    if not torch.is_tensor(value) or value.numel() != 1:
        found = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        raise TrainingError(
            f"{name!r} is logged as a {type(metric).__name__} of {found}: expected one number; log each"
        )
    return float(value)


def copy_of(metric: Metric) -> Metric:
    """Copy a metric with what it has seen, without the graphs of the steps that showed it."""
    for name in metric._defaults:
        state = getattr(metric, name)
        setattr(metric, name, [each.detach() for each in state] if isinstance(state, list) else state.detach())
    return metric.clone().cpu()


def merged(metrics: Sequence[Metric]) -> float | None:
    """Compute a metric over what several copies of it have seen; None where its states do not merge exactly."""
    first, *others = metrics
    if first.full_state_update is not False or any(how not in MERGING for how in first._reductions.values()):
        return None
    together = first.clone()
    for other in others:
        together.merge_state(other)
    together._computed = None
    return float(together.compute())
