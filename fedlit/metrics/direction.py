"""The direction in which a metric improves."""

import re
from typing import Literal


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
