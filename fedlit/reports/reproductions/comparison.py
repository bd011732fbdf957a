"""A table of means over seeds, with differences that are paired by seed."""

from collections.abc import Mapping

import pandas as pd
from scipy import stats

from fedlit.reports.reproductions.published import grid

POINT = 0.01
"""No difference below a point of AUC is claimed."""


def compare(values: pd.DataFrame, against: Mapping[str, str]) -> pd.DataFrame:
    """Return one line per cell of the table, in the order of the values.

    Args:
        values: The row, column, seed and auroc of every run; a column may be a class, a window or anything else.
        against: The row with which each row is compared, in the same column and with the same seed.

    Returns:
        A table with row, column, seeds, mean, std, difference, difference_std, within (half of the 95% interval of the
        difference, Student's over seeds), and claimed: whether the difference is at least a point and its interval
        excludes zero. Values are NaN if a seed is NaN, if there is only one seed, or if there is no other row.
    """
    cells = {key: group.set_index("seed")["auroc"] for key, group in values.groupby(["row", "column"], sort=False)}
    table = []
    for (row, column), ours in cells.items():
        other = cells.get((against.get(row), column))
        difference = ours - other if other is not None else ours * float("nan")
        mean, std = difference.mean(skipna=False), difference.std(skipna=False)
        within = std * stats.t.ppf(0.975, len(ours) - 1) / len(ours) ** 0.5
        claimed = bool(abs(mean) >= POINT and abs(mean) > within)
        table.append(
            (row, column, len(ours), ours.mean(skipna=False), ours.std(skipna=False), mean, std, within, claimed)
        )
    columns = ["row", "column", "seeds", "mean", "std", "difference", "difference_std", "within", "claimed"]
    return pd.DataFrame(table, columns=columns)


def markdown(table: pd.DataFrame, what: str, versus: str) -> str:
    """Return the table of `compare` as Markdown, with a sentence on the metric and the reference below it."""
    columns = list(dict.fromkeys(table["column"]))
    cells = {(cell.row, cell.column): _cell(cell) for cell in table.itertuples()}
    rows = [[row, *(cells.get((row, column), "") for column in columns)] for row in dict.fromkeys(table["row"])]
    seeds = table["seeds"].min()
    spread = (
        f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "of one seed, which does not show the noise"
    )
    said = (
        f"{what}, {spread}. In brackets is the difference to {versus}, with the same seed, ± half of its 95% interval; "
        "it is bold if it is at least a point and the interval excludes zero."
    )
    return "\n".join([*grid(["", *columns], rows), "", said, ""])


def _cell(cell) -> str:
    text = _number(cell.mean, cell.std, ".4f")
    if cell.difference != cell.difference:
        return text
    difference = _number(cell.difference, cell.within, "+.4f")
    return f"{text} (**{difference}**)" if cell.claimed else f"{text} ({difference})"


def _number(mean: float, std: float, form: str) -> str:
    if mean != mean:
        return "-"
    return f"{mean:{form}} ± {std:.4f}" if std == std else f"{mean:{form}}"
