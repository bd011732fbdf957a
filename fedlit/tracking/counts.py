"""The images of each class, which stay the same from round to round, as one table."""

from collections.abc import Iterable

import pandas as pd

from fedlit.tracking.names import COUNT


def counts_table(metrics: Iterable[tuple[int, str, float]]) -> pd.DataFrame:
    """Give a row for each set and class, with its positives and negatives, from the rows of ``metrics.csv``."""
    table: dict[tuple[str, str], dict[str, int]] = {}
    for _, key, value in metrics:
        if (found := COUNT.fullmatch(key)) and value == value:
            table.setdefault((found["set"], found["class"]), {})[found["sign"]] = int(value)
    rows = [(*names, found.get("pos"), found.get("neg")) for names, found in table.items()]
    return pd.DataFrame(rows, columns=["set", "class", "positives", "negatives"])
