"""A table of means over seeds, with differences that are paired by seed."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedlit.metrics.claim import Difference, claim, corrected
from fedlit.metrics.levels import LEVEL
from fedlit.reports.reproductions.published import grid


def compare(values: pd.DataFrame, against: Mapping[str, str]) -> pd.DataFrame:
    """Return one line per cell of the table, in the order of the values.

    Differences are claimed by the rule of `fedlit compare` for seeds that each have their own draw of the data.

    Args:
        values: The row, column, seed and auroc of every run; a column may be a class, a window or anything else.
        against: The row with which each row is compared, in the same column and with the same seed.

    Returns:
        A table with row, column, seeds, mean, std, difference, difference_std, within (half of the 95% interval of the
        difference, Student's over seeds), p_holm (of the paired t-test over seeds, corrected by Holm for all cells),
        and claimed: whether it is below 0.05. Values are NaN if a seed is NaN, if there is only one seed, if all
        differences are equal, or if there is no other row.
    """
    cells = {key: group.set_index("seed")["auroc"] for key, group in values.groupby(["row", "column"], sort=False)}
    changes = [ours - cells.get((against.get(row), column), np.nan) for (row, column), ours in cells.items()]
    table = []
    for (row, column), ours, change, tested in zip(cells, cells.values(), changes, _tested(changes), strict=True):
        mean, std = change.mean(skipna=False), change.std(skipna=False)
        numbers = (len(ours), ours.mean(skipna=False), ours.std(skipna=False), mean, std)
        table.append((row, column, *numbers, tested.interval.high - tested.value, tested.p_holm, tested.claimed))
    columns = ["row", "column", "seeds", "mean", "std", "difference", "difference_std", "within", "p_holm", "claimed"]
    return pd.DataFrame(table, columns=columns)


def _tested(changes: list[pd.Series]) -> list[Difference]:
    """Return the tests of differences by seed, corrected for all of them."""
    return corrected([claim(each.to_numpy(), np.zeros(len(each)), np.nan, LEVEL, 0.0) for each in changes])


def markdown(table: pd.DataFrame, what: str, versus: str) -> str:
    """Return the table of `compare` as Markdown, with a sentence on the metric and the reference below it."""
    columns = list(dict.fromkeys(table["column"]))
    cells = {(cell.row, cell.column): _cell(cell) for cell in table.itertuples()}
    rows = [[row, *(cells.get((row, column), "") for column in columns)] for row in dict.fromkeys(table["row"])]
    seeds, tests = table["seeds"].min(), table["p_holm"].notna().sum()
    spread = (
        f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "of one seed, which does not show the noise"
    )
    said = (
        f"{what}, {spread}. In brackets is the difference to {versus}, with the same seed, ± half of its 95% interval; "
        f"it is bold if p of its test over seeds is below 0.05 after Holm's correction for {tests} differences; the "
        "intervals are not corrected."
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
