"""Tables of labels, whose errors name file, line and column."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.labels import similar_names
from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES
from fedlit.data.table_formats import PARQUET, read_cells

MISSING = ("", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "None", "NULL", "null")
"""Words for a missing value, as pandas and R write them."""

_WHOLE = re.compile(r"[+-]?\d+")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_COMMA = re.compile(r"[+-]?\d*,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")


@dataclass
class LabelTable:
    """A label file.

    Attributes:
        path: Path of the file.
        rows: Rows of the file, without blank lines.
        lines: Line number of each row, where the header is line 1.
        unit: Unit of ``lines``: a line, or a row of a file without lines.
    """

    path: Path
    rows: pd.DataFrame
    lines: np.ndarray
    unit: str = "line"

    def where(self, mask: np.ndarray) -> "LabelTable":
        """Return the table with only the rows of a mask."""
        return LabelTable(self.path, self.rows[mask].reset_index(drop=True), self.lines[mask], self.unit)

    def at(self, mask: np.ndarray) -> str:
        """Return the file and the first line of a mask, for an error message."""
        return f"{self.path}, {self.unit} {self.lines[np.argmax(mask)]}"

    def named(self, mask: np.ndarray) -> str:
        """Return the first five lines of a mask, for an error message."""
        lines = self.lines[mask].tolist()
        more = ", ..." if len(lines) > 5 else ""
        return f"{self.unit}{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:5]))}{more}"


def read_any_table(path: Path, sheet: str | None = None, encoding: str | None = None) -> tuple[LabelTable, str]:
    """Read a table: text (CSV, TSV; also as ``.gz``), Parquet, or a sheet, by default the first, of a spreadsheet.

    Text is read in the encoding, by default UTF-8, UTF-16 with its mark, or Windows-1252.

    Returns:
        The table and a description of its format. All cells are stripped text, "" if a cell is empty. Lines are those
        of the file, or the rows of a Parquet file, counted from 1.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: The package that reads such spreadsheets is not installed.
        DataError: The file is not a table, has no header or no rows, repeats a column, has a row with more cells than
            the header, or is text in another encoding.
    """
    if not path.is_file():
        raise MissingFileError(f"{path}: {'a folder, not a table' if path.is_dir() else 'no such file'}")
    header, rows, lines, description = read_cells(path, sheet, encoding)
    # Each spelling is handled once, because large tables have few.
    coded = [pd.factorize(np.array(cells, dtype=object)) for cells in zip(*rows, strict=True)]
    columns = [(of_row, [_plain(cell.strip()) for cell in spellings]) for of_row, spellings in coded]
    _refuse_data(path, header, [spellings for _, spellings in columns])
    if twice := [name for name, count in Counter(header).items() if name and count > 1]:
        raise DataError(f"{path}: the header repeats the columns {listed(twice)}. Keep one of each")
    if not any(header):
        raise DataError(f"{path}: expected a header with names of columns, found none")
    named = {name: column for name, column in zip(header, columns, strict=False) if name}
    texts = {name: np.array(spellings, dtype=object)[of_row] for name, (of_row, spellings) in named.items()}
    cells = pd.DataFrame(texts, dtype=object)
    unit = "row" if path.suffix.lower() in PARQUET else "line"
    table = LabelTable(path, cells, np.array(lines, dtype=np.int64), unit).where((cells != "").any(axis=1).to_numpy())
    if not len(table.rows):
        raise DataError(f"{path}: expected rows below the header, found none")
    comma = any(is_numeric(spellings) == "," for _, spellings in named.values())
    return table, f"{path.name}: {description}{', decimal commas' if comma else ''}"


def read_table(
    path: Path, needed: Sequence[str], filled: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> LabelTable:
    """Read the table of a public data set: columns of numbers are numbers, and ``MISSING`` cells are None.

    Args:
        path: Path of the file.
        needed: Names of the columns that must exist.
        filled: Columns of text whose cells must not be empty, if the columns exist.
        columns: A map from other spellings of columns to their names.

    Raises:
        MissingFileError: There is no such file.
        DataError: A column is missing, a row is cut short, or a cell that must not be empty is empty; the message
            names file, column and line.
    """
    table, _ = read_any_table(path)
    header, rows = list(table.rows), table.rows.rename(columns=dict(columns or {}))
    for column in needed:
        if column not in rows:
            raise DataError(
                f"{path}: expected a column {column!r}, found {listed(header, 40)}; {similar_names(column, header)}"
            )
    table.rows = typed(rows, filled, MISSING)
    for column in rows.columns.intersection(filled):
        refuse_empty(table, column)
    return table


def refuse_empty(table: LabelTable, column: str) -> None:
    """Check that no cell of a column of text is empty.

    Raises:
        DataError: A cell is empty; the message names line and column.
    """
    empty = (table.rows[column].isna() | (table.rows[column].str.strip() == "")).to_numpy()
    if empty.any():
        count = f"({empty.sum()} such lines)"
        raise DataError(f"{table.at(empty)}: column {column!r} is empty {count}. Fill it in, or remove the line.")


def refuse_repeats(table: LabelTable, column: str, what: str = "image") -> None:
    """Check that no two rows have the same value in a column.

    Raises:
        DataError: Two rows have the same value; the message names both lines.
    """
    repeated = table.rows[column].duplicated(keep=False).to_numpy()
    if repeated.any():
        name = table.rows[column][repeated].iloc[0]
        at = table.lines[(table.rows[column] == name).to_numpy()]
        raise DataError(
            f"{table.path}: {what} {name!r} is on {table.unit}s {', '.join(map(str, at))}. Keep one of them."
        )


def numbers(table: LabelTable, columns: Sequence[str], allowed: Sequence[float]) -> np.ndarray:
    """Return columns of numbers as float32 [N, L], with NaN where a cell is blank.

    Raises:
        DataError: A cell is neither blank nor one of the allowed values; the message names line and column.
    """
    values = table.rows[list(columns)]
    parsed = values.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float32)
    wrong = ~(np.isin(parsed, allowed) | values.isna().to_numpy())
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"{table.path}, line {table.lines[row]}: column {columns[column]!r}: expected "
            f"{', '.join(f'{value:g}' for value in allowed)} or nothing, found {str(values.iloc[row, column])!r} "
            f"({wrong.sum()} such cells)"
        )
    return parsed


def typed(rows: pd.DataFrame, texts: Sequence[str] = (), missing: Sequence[str] = ("",)) -> pd.DataFrame:
    """Convert columns in which all cells are numbers, with either decimal sign, but not ``texts``."""
    columns = {}
    for name, cells in rows.items():
        of_row, spellings = pd.factorize(cells.to_numpy())
        known = pd.Series([None if cell in missing else cell for cell in spellings], dtype=object)
        if sign := "" if name in texts else is_numeric(known.dropna()):
            known = pd.to_numeric(known.str.replace(",", ".") if sign == "," else known)
        columns[name] = known.to_numpy()[of_row]
    return pd.DataFrame(columns, index=rows.index)


def is_numeric(cells: Iterable[str]) -> str:
    """Return the decimal sign of a column of numbers, ``.`` for whole numbers, or "" for other text.

    A number that begins with a zero, such as ``007``, is text: an id. So is ``1,234`` in a column of which each comma
    may separate thousands.
    """
    signs = set()
    different = dict.fromkeys(cells)
    if has_thousands(different):
        return ""
    for cell in different:
        if cell == "":
            continue
        if _WHOLE.fullmatch(cell) and not re.match(r"[+-]?0\d", cell) and len(cell) < 16:
            signs.add("")
        elif _COMMA.fullmatch(cell):
            signs.add(",")
        elif _POINT.fullmatch(cell):
            signs.add(".")
        else:
            return ""
    return "" if not signs or {",", "."} <= signs else "," if "," in signs else "."


def has_thousands(cells: Iterable[str]) -> bool:
    """Return whether commas of a column's numbers may all separate thousands, so ``1,234`` has two readings."""
    commas = [cell for cell in cells if "," in cell and _GROUPED.fullmatch(cell)]
    return bool(commas) and not any(_COMMA.fullmatch(cell) and not _GROUPED.fullmatch(cell) for cell in cells)


def _refuse_data(path: Path, header: list[str], columns: list[list[str]]) -> None:
    """Refuse a first line that names an image, or repeats cells of the columns below it: it is no header."""
    numbers = {name for name in header if _WHOLE.fullmatch(name) or _POINT.fullmatch(name)}
    repeated = [name for name, spellings in zip(header, columns, strict=False) if name and name in spellings]
    image = next((name for name in header if name.lower().endswith(SUFFIXES)), "")
    if image or (len(repeated) > 1 and numbers.intersection(repeated)):
        raise DataError(
            f"{path}: expected a header with names of columns, found the data {listed(header, 4)}; add a first line "
            "such as image,patient,site,Edema"
        )


def _plain(cell: str) -> str:
    """Return a cell without the signs by which Excel marks text: ``'0017`` and ``="0017"`` are 0017."""
    if cell.startswith(('="', "'")):
        return re.sub(r"""^'(?=[\d=+@-])|^="(.*)"$""", r"\1", cell)
    return cell
