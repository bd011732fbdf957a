"""Reading of custom tables, with detection of delimiter, encoding and decimal sign."""

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError, DataError, MissingFileError
from fedlit.data.groups import text_of
from fedlit.data.records import listed
from fedlit.data.tables import LabelTable

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Possible delimiters of cells, and their names."""

ENCODINGS = {"utf-8-sig": "UTF-8", "cp1252": "Windows-1252", "latin-1": "Latin-1"}
"""Encodings in the order in which they are tried; the last accepts any bytes."""

SPREADSHEETS = {".xlsx": "openpyxl", ".xlsm": "openpyxl", ".xls": "xlrd", ".ods": "odfpy"}
"""Suffixes of spreadsheets, and the package with which pandas reads each."""

PARQUET = (".parquet", ".pq")
TEXTS = (".csv", ".tsv", ".txt", ".tab")

_SAMPLE = 200  # lines in which the delimiter is detected
_WHOLE = re.compile(r"[+-]?\d+")
_COMMA = re.compile(r"[+-]?\d*,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")


def is_table(path: Path) -> bool:
    """Return True if the name of a file is that of a table."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith((*TEXTS, *PARQUET, *SPREADSHEETS))


def read_any_table(path: Path, sheet: str | None = None) -> tuple[LabelTable, str]:
    """Read a table: text (CSV, TSV; also as ``.gz``), Parquet, or a sheet, by default the first, of a spreadsheet.

    Returns:
        The table and a description of its format. All cells are stripped text, "" if a cell is empty. Lines are those
        of the file, or the rows of a Parquet file, counted from 1.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: The package that reads such spreadsheets is not installed.
        DataError: The file is not a table, has no rows, repeats a column, or has a row with more cells than the
            header.
    """
    if not path.is_file():
        raise MissingFileError(
            f"{path}: {'a folder, not a table' if path.is_dir() else 'no such file'}", key="image-table-missing"
        )
    suffix = path.suffix.lower()
    if suffix in SPREADSHEETS:
        header, rows, lines, description = _spreadsheet(path, SPREADSHEETS[suffix], sheet)
    elif suffix in PARQUET:
        header, rows, lines, description = _parquet(path)
    else:
        header, rows, lines, description = _text(path)
    counts = Counter(header)
    if twice := [name for name, count in counts.items() if name and count > 1]:
        raise DataError(
            f"{path}: the header repeats the columns {listed(twice)}. Keep one of each", key="table-header-repeated"
        )
    if not any(header):
        raise DataError(f"{path}: expected a header with names of columns, found none", key="table-header-missing")
    cells = pd.DataFrame(rows, columns=range(len(header)), dtype=object)
    cells = cells[[column for column, name in enumerate(header) if name]].set_axis([n for n in header if n], axis=1)
    table = LabelTable(path, cells, np.array(lines, dtype=np.int64), "row" if suffix in PARQUET else "line")
    table = table.where((cells != "").any(axis=1).to_numpy())
    if not len(table.rows):
        raise DataError(f"{path}: expected rows below the header, found none", key="table-without-rows")
    comma = [name for name in table.rows if is_numeric(table.rows[name]) == ","]
    return table, f"{path.name}: {description}{', decimal commas' if comma else ''}"


def typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert columns of text in which all cells are numbers, with either decimal sign; "" becomes None."""
    columns = {}
    for name, cells in rows.items():
        sign = is_numeric(cells)
        plain = cells.str.replace(",", ".") if sign == "," else cells
        columns[name] = pd.to_numeric(plain.where(cells != "", None)) if sign else cells.where(cells != "", None)
    return pd.DataFrame(columns, index=rows.index)


def is_numeric(cells: Iterable[str]) -> str:
    """Return the decimal sign of a column of numbers, ``.`` for whole numbers, or "" for other text.

    A number that begins with a zero, such as ``007``, is text: an id.
    """
    signs = set()
    for cell in pd.unique(pd.Series(cells)):
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


def _text(path: Path) -> tuple[list[str], list[list[str]], list[int], str]:
    content = _unpacked(path)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding, text = "UTF-16", content.decode("utf-16", errors="replace")
    elif b"\0" in content:
        raise DataError(f"{path}: expected a table, found bytes that are not text", key="table-not-text")
    else:
        encoding, text = _decoded(content)
    if not text.strip():
        raise DataError(f"{path}: expected a table, found nothing", key="table-empty")
    lines = text.splitlines(keepends=True)
    named = re.fullmatch(r'"?sep=(.)"?', lines[0].strip("\r\n"), re.IGNORECASE)  # as Excel writes it
    delimiter = named[1] if named and named[1] in DELIMITERS else _delimiter(lines)
    lines = ["\n", *lines[1:]] if named else lines
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    rows, numbers, started = [], [], 1
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not header and any(cells):
                header = cells
            elif header and any(cells):
                rows.append(_fitted(cells, header, f"{path}, line {started}"))
                numbers.append(started)
            started = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {started}: {error}; is a quote open there?", key="table-quote-open") from None
    return header, rows, numbers, f"{DELIMITERS[delimiter]} between cells, {encoding}"


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix.lower() != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected gzip, found a damaged file: {error}", key="table-gzip-damaged") from None


def _decoded(content: bytes) -> tuple[str, str]:
    for encoding, name in ENCODINGS.items():
        try:
            return name, content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise AssertionError("Latin-1 accepts any bytes")


def _delimiter(lines: list[str]) -> str:
    """Return the delimiter that divides the header into most cells, and other lines into no more cells."""
    best, most = ",", 1
    for delimiter in DELIMITERS:
        try:
            widths = [len(cells) for cells in islice(csv.reader(lines, delimiter=delimiter), _SAMPLE) if any(cells)]
        except csv.Error:
            continue
        if widths and widths[0] > most and sum(w <= widths[0] for w in widths) >= 0.9 * len(widths):
            best, most = delimiter, widths[0]
    return best


def _fitted(cells: list[str], header: list[str], where: str) -> list[str]:
    width, least = len(header), max((n for n, name in enumerate(header, 1) if name), default=0)
    if any(cells[width:]) or len(cells) < least:
        raise DataError(f"{where}: expected {width} cells as in the header, found {len(cells)}", key="table-cell-count")
    return cells[:width] + [""] * (width - len(cells))


def _spreadsheet(path: Path, package: str, wanted: str | None) -> tuple[list[str], list[list[str]], list[int], str]:
    try:
        sheets = pd.read_excel(path, sheet_name=None, header=None, dtype=object)
    except ImportError:
        raise ConfigError(
            f"{path}: pandas reads such a spreadsheet with {package}, which is not installed: pip install {package}, "
            "or save the table as CSV",
            key="spreadsheet-package-missing",
        ) from None
    except Exception as error:  # the type of error depends on the package
        raise DataError(f"{path}: expected a spreadsheet, found: {error}", key="spreadsheet-damaged") from None
    name = next(iter(sheets)) if wanted is None else wanted
    if name not in sheets:
        raise DataError(f"{path}: expected a sheet {name!r}, found {listed(sheets)}", key="sheet-missing")
    sheet, others = sheets[name], [each for each in sheets if each != name]
    rows = _texts(sheet)
    first = next((number for number, row in enumerate(rows) if any(row)), 0)
    description = f"a spreadsheet, {name!r}"
    if others and wanted is None:
        description = f"only the sheet {name!r} was read, and {listed(others)} was not: --set '{{sheet: {others[0]}}}'"
    return rows[first] if rows else [], rows[first + 1 :], list(range(first + 2, len(rows) + 1)), description


def _parquet(path: Path) -> tuple[list[str], list[list[str]], list[int], str]:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # pyarrow has many errors
        raise DataError(f"{path}: expected a Parquet file, found: {error}", key="parquet-table-damaged") from None
    rows = _texts(frame)
    return [str(name).strip() for name in frame.columns], rows, list(range(1, len(rows) + 1)), "a Parquet file"


def _texts(cells: pd.DataFrame) -> list[list[str]]:
    filled = cells.astype(object).where(cells.notna(), "")
    return [[text_of(cell) for cell in row] for row in filled.itertuples(index=False, name=None)]
