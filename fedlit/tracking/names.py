"""Names of metrics: in trackers, which omit counts, and the direction in which a metric improves.

Trackers sort metrics by name. A digit before each key puts the most important metrics first: validation AUROC is
``1-val/auroc_macro``, and costs of a round such as ``9-bytes/up`` come last. ``metrics.csv`` and the configuration use
keys without the digit.
"""

import re
from collections.abc import Mapping
from typing import Literal

ORDER = (
    (1, r"val/auroc_macro"),
    (2, r"val/auroc/.+"),
    (3, r"test(_curve)?/.+/auroc(_macro|_own_macro|_images|/.+)"),
    (9, r"(bytes|time|total)/.+|client/.+/seconds"),
    (4, r"(val|test|test_curve|train)/.+"),
    (6, r"drift/.+"),
    (7, r"round/.+"),
)
"""Digits and patterns of their keys; the first match counts, and other keys have the digit `OTHERS`."""

OTHERS = 5
"""Digit of the metrics of single clients, algorithms, objectives and callbacks."""

TEST = ("test/", "test_curve/")
"""Prefixes of test metrics, on which no choice may be based."""

CLIENT_MEAN, BY_CLIENT = "_client_mean", "_by_client/"
"""Ends of the keys of a value that a module logs: the mean over clients, and the value of the client that follows."""

DEFAULT_EXPERIMENT = "default"
"""Experiment of the runs whose configuration names none; in MLflow, the environment may name another for them."""

IS_PARENT = "fedlit.is_parent"
"""Tag of an MLflow run that has no directory: its metrics are means over the runs below it."""

PHASE = "fedlit.phase"
"""Tag of a run that is a phase, with the phase's name."""

STAGE, BUDGET = "fedlit.tune", "fedlit.tuned"
"""Tags of the runs of `fedlit tune`: ``try``, ``final`` or `CHOSEN`, and the number of tries and seeds of a method."""

CHOSEN = "chosen"
"""Stage of a try that its own seed has chosen, which so is a final run."""

COUNT = re.compile(r"(?P<set>.+)/n_(?P<sign>pos|neg)/(?P<class>[^/]+)")
"""Keys of the numbers of positive and negative images per class, which are the same in every round."""


def shown_name(key: str) -> str:
    """Return the name of a metric of ``metrics.csv`` in trackers."""
    digit = next((digit for digit, keys in ORDER if re.fullmatch(keys, key)), OTHERS)
    return f"{digit}-{key}"


def key_of(name: str) -> str:
    """Return the key in ``metrics.csv`` for a metric's name in a tracker; other names are returned unchanged."""
    key = name[len("1-") :]
    return key if shown_name(key) == name else name


def is_count(key: str) -> bool:
    """Check if a metric is a number of images, which trackers omit."""
    return COUNT.fullmatch(key) is not None


def shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics for trackers: with their names there, sorted, and without counts."""
    return dict(sorted((shown_name(key), value) for key, value in metrics.items() if not is_count(key)))


def better(metric: str) -> Literal["max", "min"] | None:
    """Return ``max`` for an AUROC, ``min`` for a loss, and None for other metrics.

    Only the level of the key that names the metric counts, not the class or the client: ``val/auroc/Volume_loss`` is an
    AUROC. The default ``auto`` has the direction ``max``.
    """
    levels = metric.split("/")
    level = levels[min(2 if levels[0] == "client" else 1, len(levels) - 1)]
    words = re.split(r"[\W_]+", level.lower())
    if "loss" in words:
        return "min"
    return "max" if "auroc" in words or metric == "auto" else None
