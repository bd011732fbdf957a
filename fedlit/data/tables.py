"""Label files: CSV tables whose columns, lines and gaps are named when something is wrong with them."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.data.labels import near
from fedlit.data.records import listed


@dataclass
class Table:
    """A label file.

    Attributes:
        path: of the file.
        rows: its rows, without blank lines.
        lines: the line number of each row, the header being line 1; exact unless a quoted field spans lines.
    """

    path: Path
    rows: pd.DataFrame
    lines: np.ndarray

    def where(self, mask: np.ndarray) -> "Table":
        """The rows of a mask."""
        return Table(self.path, self.rows[mask].reset_index(drop=True), self.lines[mask])

    def at(self, mask: np.ndarray) -> str:
        """The file and the first line of a mask, for an error message."""
        return f"{self.path}, line {self.lines[np.argmax(mask)]}"


def read_table(
    path: Path, needed: Sequence[str], filled: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> Table:
    """Read a CSV file, compressed (``.gz``) or not.

    Args:
        path: of the file.
        needed: columns that must be there, literally.
        filled: those of them that are text and must not be empty.
        columns: other spellings of columns and what they are called here.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, or a cell that must be filled is empty; names file, column and line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with warnings.catch_warnings():
        # Some copies end every line but the header with a comma; pandas warns that it drops the empty column.
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        try:
            rows = pd.read_csv(
                path,
                dtype=dict.fromkeys(filled, str),
                index_col=False,
                encoding="utf-8-sig",
                skip_blank_lines=False,
                low_memory=False,
            )
        except pd.errors.EmptyDataError:
            raise ValueError(f"{path}: expected a table with columns {listed(needed, 20)}, found nothing") from None
        except (pd.errors.ParserError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: expected a table of comma-separated values in UTF-8, found: {error}") from None
    rows.columns = [str(column).strip() for column in rows.columns]
    found = [column for column in rows.columns if not column.startswith("Unnamed:")]
    rows = rows[found].rename(columns=dict(columns or {}))
    for column in needed:
        if column not in rows.columns:
            hint = near(column, found) if found else "there is none"
            raise ValueError(f"{path}: expected a column {column!r}, found {listed(found, 40)}; {hint}")
    table = Table(path, rows, np.arange(2, len(rows) + 2)).where(rows.notna().any(axis=1).to_numpy())
    if not len(table.rows):
        raise ValueError(f"{path}: expected rows below the header, found none")
    for column in filled:
        empty = (table.rows[column].isna() | (table.rows[column].str.strip() == "")).to_numpy()
        if empty.any():
            raise ValueError(
                f"{table.at(empty)}: column {column!r} is empty ({empty.sum()} such lines). "
                "Fill it in, or remove the line."
            )
        table.rows[column] = table.rows[column].str.strip()
    return table


def refuse_repeats(table: Table, column: str, what: str = "image") -> None:
    """Raises:
    ValueError: two rows have the same value in a column; names both lines.
    """
    repeated = table.rows[column].duplicated(keep=False).to_numpy()
    if repeated.any():
        name = table.rows[column][repeated].iloc[0]
        at = table.lines[(table.rows[column] == name).to_numpy()]
        raise ValueError(f"{table.path}: {what} {name!r} is on lines {', '.join(map(str, at))}. Keep one of them.")


def numbers(table: Table, columns: Sequence[str], allowed: Sequence[float]) -> np.ndarray:
    """Columns of numbers as float32 [N, L], NaN where a cell is blank.

    Raises:
        ValueError: a cell holds something else than the allowed values or a blank; names line and column.
    """
    values = table.rows[list(columns)]
    parsed = values.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float32)
    wrong = ~(np.isin(parsed, allowed) | values.isna().to_numpy())
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{table.path}, line {table.lines[row]}: column {columns[column]!r}: expected "
            f"{', '.join(f'{value:g}' for value in allowed)} or nothing, found "
            f"{str(values.iloc[row, column])!r} ({wrong.sum()} such cells)"
        )
    return parsed
