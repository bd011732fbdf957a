"""Evidence for each class: its independent positives and negatives, and the classes with few of them."""

from collections.abc import Iterable

import numpy as np


def independent(labels: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two ``[C]`` int64: the distinct units ``[N]`` (patients, or images) with positive and negative labels.

    Labels ``[N, C]`` are 1, 0 or NaN; a unit with both counts on both sides.
    """
    masks = (labels == value for value in (1, 0))
    positives, negatives = (np.array([len(np.unique(units[of])) for of in mask.T], dtype=np.int64) for mask in masks)
    return positives, negatives


def few(fewest: int, units: str, counts: Iterable[tuple[str, int, int]]) -> str:
    """Return the classes with few positive or negative units, such as ``Fewer than 10 ... patients: Edema (6 and 93)``.

    ``counts`` are the classes with their positives and negatives, and ``units`` what is counted.
    """
    named = ", ".join(f"{name} ({positives} and {negatives})" for name, positives, negatives in counts)
    return f"Fewer than {fewest} positive or negative {units}: {named}"
