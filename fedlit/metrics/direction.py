"""Whether more of a metric is better."""

import re
from typing import Literal


def better(metric: str) -> Literal["max", "min"] | None:
    """Return ``max`` for an AUROC, ``min`` for a loss, and None for a metric that nothing is known of.

    What counts is the level of the key that names the metric, not that of a class or a client:
    ``val/auroc/Volume_loss`` is an AUROC. ``auto`` is the choice that every run has.
    """
    levels = metric.split("/")
    level = levels[min(2 if levels[0] == "client" else 1, len(levels) - 1)]
    words = re.split(r"[\W_]+", level.lower())
    if "loss" in words:
        return "min"
    return "max" if "auroc" in words or metric == "auto" else None
