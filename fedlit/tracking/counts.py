"""The images of each class, which stay the same from round to round, as one table."""

import csv
from collections.abc import Iterable
from pathlib import Path

from fedlit.tracking.names import COUNT


def write_counts(metrics: Iterable[tuple[int, str, float]], path: Path) -> bool:
    """Write a row for each set and class, with its positives and negatives, and return whether there are any.

    Args:
        metrics: The rows of ``metrics.csv``.
        path: The CSV file, which is made only where there are counts.
    """
    table: dict[tuple[str, str], dict[str, int]] = {}
    for _, key, value in metrics:
        if (found := COUNT.fullmatch(key)) and value == value:
            table.setdefault((found["set"], found["class"]), {})[found["sign"]] = int(value)
    if table:
        with path.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("set", "class", "positives", "negatives"))
            rows.writerows((*names, found.get("pos"), found.get("neg")) for names, found in table.items())
    return bool(table)
