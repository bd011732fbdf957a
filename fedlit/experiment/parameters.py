"""What a tracker's pages compare runs by: at most 40 parameters, the ones that people look for first.

Pages sort by name. Short names come first, then ``with.FedProx.mu`` of an algorithm, then ``yaml.data.split`` of the rest.
The whole configuration is beside them as ``config.yaml``.
"""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from lightning.pytorch import LightningModule

from fedlit.core.aggregator import composed_name
from fedlit.experiment.naming import method_name, objective_name
from fedlit.federation.federation import Federation
from fedlit.tracking.run import flatten

Value = str | int | float | bool

MOST = 40
"""Parameters of a run: more than that nobody reads."""

SHORT = {
    "lr": ("model.optimizer.lr", "model.lr"),
    "seed": ("seed",),
    "data": ("data",),
    "partition": ("data.partition",),
    "model": ("model",),
    "backbone": ("model.backbone",),
    "optimizer": ("model.optimizer",),
    "batch_size": ("data.batch_size",),
    "schedule": ("federation.schedule",),
    "participation": ("federation.participation",),
}
"""Names that stand alone, and the keys of a configuration of which the first that is there has the value."""

ELSEWHERE = ("config", "experiment", "fast_dev_run", "logger", "callbacks", "ckpt_path", "run_dir", "name", "tags")
"""Keys that say where a run ran and what followed it, not what it was."""

KNOWN = (
    "federation.schedule.window", "federation.rounds", "fabric.accelerator", "fabric.devices",
    "fabric.num_nodes", "federation.workers", "federation.threads", "federation.eval_every", "federation.monitor",
    "federation.monitor_mode", "federation.checkpoint_every", "federation.measure_batches", "data.eval_batch_size",
    "data.cache_dir", "data.device", "federation.memory_format", "federation.cuda_graph",
    "federation.state_memory",
)  # fmt: skip
"""Keys that a short name says already, or that change no number of a run; what is below them is another key."""

ALGORITHM = re.compile(r"(federation\.aggregators\.\d+|model\.objective)(?:\.(.+))?")
"""Keys of an aggregator or objective, and the name of the hyper-parameter."""

LAST = ("model.optimizer.", "fabric.", "phases")
"""Beginnings of the keys that are left out first where there are too many."""


def parameters(settings: Mapping[str, Any], federation: Federation, model: LightningModule) -> dict[str, Value]:
    """Give what people compare runs by, in the order in which they look for it.

    Args:
        settings: The configuration.
        federation: What it describes: the aggregators, and the window of the first round.
        model: What it trains, with its objective.
    """
    flat = _flat(settings)
    chosen: dict[str, Value] = {
        "method": method_name(federation, model),
        "aggregator": composed_name(federation.aggregators),
        "objective": objective_name(model),
        "window": federation.schedule.plan(0).window,
        "rounds": federation.rounds,
        "weights": federation.client_weights,
    }
    used = {*KNOWN, "federation.weights"}
    for name, keys in SHORT.items():
        if key := next((key for key in keys if key in flat), None):
            chosen[name] = flat[key]
            used.add(key)
    for key, value in flat.items():
        if found := ALGORITHM.fullmatch(key):
            used.add(key)
            if found[2]:
                chosen[f"with.{flat.get(found[1], found[1])}.{found[2]}"] = value
    rest = {key: value for key, value in flat.items() if key not in used}
    chosen |= {f"yaml.{key}": rest[key] for key in sorted(rest, key=lambda key: key.startswith(LAST))}
    return dict(islice(((name, value) for name, value in chosen.items() if value != ""), MOST))


def _flat(settings: Mapping[str, Any]) -> dict[str, Value]:
    """The configuration by dotted keys, a class by its name, without what is not set."""
    flat = flatten({key: value for key, value in settings.items() if key not in ELSEWHERE})
    given = {key: value for key, value in flat.items() if value is not None and value not in ([], {})}
    named = {k: v.rpartition(".")[2] if k.endswith(".class_path") else v for k, v in given.items()}
    return {
        k.replace(".init_args", "").removesuffix(".class_path"): v if isinstance(v, (int, float)) else str(v)
        for k, v in named.items()
    }
