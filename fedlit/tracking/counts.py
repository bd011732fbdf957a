"""The number of images per class, which is the same in every round, as one table."""

import csv
from collections.abc import Iterable
from pathlib import Path

from fedlit.tracking.names import COUNT


def write_counts(metrics: Iterable[tuple[int, str, float]], path: Path) -> bool:
    """Write a row per set and class with its positives and negatives; returns False if there are no counts."""
    table: dict[tuple[str, str], dict[str, int]] = {}
    for _, key, value in metrics:
        if (match := COUNT.fullmatch(key)) and value == value:
            table.setdefault((match["set"], match["class"]), {})[match["sign"]] = int(value)
    if table:
        with path.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("set", "class", "positives", "negatives"))
            rows.writerows((*names, counts.get("pos"), counts.get("neg")) for names, counts in table.items())
    return bool(table)
