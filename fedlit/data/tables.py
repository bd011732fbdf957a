"""Label files: CSV tables whose errors name file, line and column."""

import codecs
import csv
import gzip
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.labels import similar_names
from fedlit.data.records import listed

HEAD = 2**16
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass
class LabelTable:
    """A label file.

    Attributes:
        path: Path of the file.
        rows: Rows of the file, without blank lines.
        lines: Line number of each row, where the header is line 1. Line breaks in quoted fields are not counted.
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


def read_table(
    path: Path, needed: Sequence[str], filled: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> LabelTable:
    """Read a CSV file, compressed (``.gz``) or not.

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
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    spelled = _checked_header(path)
    with warnings.catch_warnings():
        # Some copies end every line but the header with a comma; pandas warns that it drops the empty column.
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        try:
            texts = [name for name in spelled if (columns or {}).get(name.strip(), name.strip()) in filled]
            text = {"dtype": dict.fromkeys(texts, str), "encoding": "utf-8-sig", "low_memory": False}
            rows = pd.read_csv(path, index_col=False, skip_blank_lines=False, **text)
        except pd.errors.EmptyDataError:
            raise DataError(f"{path}: expected a table with columns {listed(needed, 20)}, found nothing") from None
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: expected UTF-8, found the byte 0x{error.object[error.start]:02x} at {error.start:,}, as in "
                "Latin-1 or Windows-1252. Save the table as UTF-8"
            ) from None
        except pd.errors.ParserError as error:
            raise DataError(f"{path}: expected comma-separated values in UTF-8, found: {error}") from None
    rows.columns = [str(column).strip() for column in rows.columns]
    header = [column for column in rows.columns if not column.startswith("Unnamed:")]
    if rows[header[-1:]].isna().any(axis=None):
        _refuse_cut_rows(path, len(header))
    rows = rows[header].rename(columns=dict(columns or {}))
    other = next((name for sign, name in SEPARATORS.items() if len(header) == 1 and sign in header[0]), "")
    for column in needed:
        if column not in rows.columns and other:
            raise DataError(f"{path}: expected commas between cells, found {other}. Save it with commas")
        if column not in rows.columns:
            hint = similar_names(column, header) if header else "the header is empty"
            raise DataError(f"{path}: expected a column {column!r}, found {listed(header, 40)}; {hint}")
    table = LabelTable(path, rows, np.arange(2, len(rows) + 2)).where(rows.notna().any(axis=1).to_numpy())
    if not len(table.rows):
        raise DataError(f"{path}: expected rows below the header, found none")
    for column in table.rows.columns.intersection(filled):
        refuse_empty(table, column)
        table.rows[column] = table.rows[column].str.strip()
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


def _checked_header(path: Path) -> list[str]:
    """Return the names of the columns as they are spelled, all different."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(HEAD)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected gzip, found a damaged file: {error}") from None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}: expected UTF-8, found UTF-16. Save the table as UTF-8")
    if b"\0" in head:
        raise DataError(f"{path}: expected comma-separated values in UTF-8, found bytes that are not text")
    text = head.decode("utf-8-sig", errors="replace")
    spelled = next(csv.reader(text.splitlines(keepends=True)), [])
    counts = Counter(name.strip() for name in spelled)
    if twice := [name for name, count in counts.items() if name and count > 1]:
        raise DataError(f"{path}: the header repeats the columns {listed(twice)}. Keep one of each")
    return spelled


def _refuse_cut_rows(path: Path, width: int) -> None:
    with (
        gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as file
    ):
        for line, cells in enumerate(csv.reader(file), 1):
            if any(cells) and len(cells) < width:
                raise DataError(f"{path}, line {line}: expected {width} cells as in the header, found {len(cells)}")


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
