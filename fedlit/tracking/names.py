"""Names of metrics as trackers show them, and the counts that they do not show.

A tracker's pages sort by name. A digit in front of each key brings first what matters: the AUROC of the validation data
is ``1-val/auroc_macro``, and what a round cost is ``9-bytes/up``. ``metrics.csv`` and the configuration have the keys
without the digit.
"""

import re
from collections.abc import Mapping

ORDER = (
    (1, r"val/auroc_macro"),
    (2, r"val/auroc/.+"),
    (3, r"test(_curve)?/.+/auroc(_macro|_own_macro|_images|/.+)"),
    (9, r"(bytes|time|total)/.+|client/.+/seconds"),
    (4, r"(val|test|test_curve|train)/.+"),
    (6, r"drift/.+"),
    (7, r"round/.+"),
)
"""Digits, and the keys that they stand before; the first that fits counts. What is in none of them has `OTHERS`."""

OTHERS = 5
"""The digit of single clients, and of what algorithms, objectives and callbacks log."""

TEST = ("test/", "test_curve/")
"""Beginnings of the keys of the test sets' metrics, by which nothing may be chosen."""

COUNT = re.compile(r"(?P<set>.+)/n_(?P<sign>pos|neg)/(?P<class>[^/]+)")
"""Keys of what stays the same from round to round: the images of a class with and without it."""


def shown_name(key: str) -> str:
    """Give the name under which trackers show a metric of ``metrics.csv``."""
    digit = next((digit for digit, keys in ORDER if re.fullmatch(keys, key)), OTHERS)
    return f"{digit}-{key}"


def key_of(name: str) -> str:
    """Give the key of a metric in ``metrics.csv`` from its name in a tracker; others' names stay as they are."""
    key = name[len("1-") :]
    return key if shown_name(key) == name else name


def is_count(key: str) -> bool:
    """Tell whether a metric is a count of images, which no tracker shows."""
    return COUNT.fullmatch(key) is not None


def shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """Give metrics as trackers show them: under their names there, in their order, and without counts."""
    return dict(sorted((shown_name(key), value) for key, value in metrics.items() if not is_count(key)))
