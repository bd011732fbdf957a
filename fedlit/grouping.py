"""By what runs are grouped and charted: what people call a method, and what runs of different seeds have in common."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from fedlit.aggregators.base import composed_name
from fedlit.federation import Federation
from fedlit.run import MAY_DIFFER, flatten
from fedlit.tracking.base import MetricsFile

LENGTHENS = ("federation.rounds", "federation.patience")
"""A resumed run may change them, but runs of different lengths are not compared over their seeds."""

APART = ("seed", *(key for key in MAY_DIFFER if key not in LENGTHENS))
"""Beginnings of the keys in which runs of one group may differ."""

TOTALS = {"bytes/up": "total/bytes_up", "bytes/down": "total/bytes_down", "round/steps": "total/steps"}
"""What a round logs, and its sum over all rounds and phases."""


def objective_name(model: LightningModule) -> str:
    """The class of the model's objective; "" of a model that has a loss of its own."""
    objective = getattr(model, "objective", None)
    return type(objective).__name__ if isinstance(objective, nn.Module) else ""


def method_name(federation: Federation, model: LightningModule) -> str:
    """What people call the algorithm: the aggregators, and the objective where it is not BCE."""
    objective = objective_name(model)
    return composed_name(federation.aggregators) + (f"-{objective}" if objective not in ("", "BCE") else "")


def group_name(settings: Mapping[str, Any], method: str) -> str:
    """One name for all runs that differ in their seed alone, whoever started them.

    Args:
        settings: the resolved configuration, nested.
        method: the readable part of the name.
    """
    # Options that are not set are left out: a later version with one more of them has the same groups.
    own = {k: v for k, v in flatten(dict(settings)).items() if v is not None and not k.startswith(APART)}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()
    return f"{method}-{digest[:8]}"


def short_parameters(federation: Federation, model: LightningModule) -> dict[str, str | int]:
    """What charts have as their axes, by short names: aggregator, objective, window of the first round, rounds."""
    objective = objective_name(model)
    return {
        "aggregator": composed_name(federation.aggregators),
        "window": federation.schedule.plan(0).window,
        "rounds": federation.rounds,
    } | ({"objective": objective} if objective else {})


def totals(metrics: MetricsFile) -> dict[str, float]:
    """``total/...``: what the whole run has sent and done, over all clients; of :data:`TOTALS`."""
    sums = dict.fromkeys(TOTALS.values(), 0.0)
    for _, key, value in metrics.rows():
        if key in TOTALS:
            sums[TOTALS[key]] += value
    return sums
