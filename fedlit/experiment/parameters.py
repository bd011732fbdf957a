"""Parameters by which a tracker's pages compare runs: at most 40, the most wanted ones first.

Pages sort by name. Short names precede those of algorithms, such as ``with.FedProx.mu``, and all others, such as
``yaml.data.split``. The whole configuration is in ``config.yaml``.
"""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from fedlit.experiment.naming import Names
from fedlit.federation.federation import Federation
from fedlit.tracking.run import flatten

Value = str | int | float | bool

MOST = 40
"""Largest number of parameters of a run."""

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
"""Short names, and the keys of a configuration; the first existing key has the value."""

ELSEWHERE = (
    "config", "experiment", "fast_dev_run", "figures", "logger", "callbacks", "ckpt_path", "run_dir", "name", "tags"
)  # fmt: skip
"""Keys that do not describe the method or the data of a run."""

KNOWN = (
    "federation.schedule.window", "federation.rounds", "fabric.accelerator", "fabric.devices",
    "fabric.num_nodes", "federation.workers", "federation.threads", "federation.eval_every", "federation.monitor",
    "federation.monitor_mode", "federation.checkpoint_every", "federation.measure_batches", "data.eval_batch_size",
    "data.cache_dir", "data.device", "federation.memory_format",
    "federation.state_memory",
)  # fmt: skip
"""Keys that a short name covers, or that do not change results; keys below them are not meant."""

ALGORITHM = re.compile(r"(federation\.aggregators\.\d+|model\.objective)(?:\.(.+))?")
"""Keys of an aggregator or objective, and the name of the hyper-parameter."""

LAST = ("model.optimizer.", "fabric.", "phases")
"""Beginnings of the keys that are left out first if there are too many."""


def parameters(settings: Mapping[str, Any], federation: Federation, names: Names) -> dict[str, Value]:
    """Return the parameters of a run, the most wanted ones first."""
    flat = _flat(settings)
    chosen: dict[str, Value] = {
        "method": names.method,
        "aggregator": names.aggregator,
        "objective": names.objective,
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
        if match := ALGORITHM.fullmatch(key):
            used.add(key)
            if match[2]:
                chosen[f"with.{flat.get(match[1], match[1])}.{match[2]}"] = value
    rest = {key: value for key, value in flat.items() if key not in used}
    chosen |= {f"yaml.{key}": rest[key] for key in sorted(rest, key=lambda key: key.startswith(LAST))}
    return dict(islice(((name, value) for name, value in chosen.items() if value != ""), MOST))


def _flat(settings: Mapping[str, Any]) -> dict[str, Value]:
    """Return the configuration by dotted keys, with classes by their names and without unset keys."""
    flat = flatten({key: value for key, value in settings.items() if key not in ELSEWHERE})
    values = {key: value for key, value in flat.items() if value is not None and value not in ([], {})}
    named = {k: v.rpartition(".")[2] if k.endswith(".class_path") else v for k, v in values.items()}
    return {
        k.replace(".init_args", "").removesuffix(".class_path"): v if isinstance(v, (int, float)) else str(v)
        for k, v in named.items()
    }
