"""Reading of custom tables, with detection of delimiter, encoding and decimal sign."""

import codecs
import csv
import gzip
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from charset_normalizer import from_bytes

from fedlit.core.errors import ConfigError, DataError, MissingFileError
from fedlit.data.groups import text_of
from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES
from fedlit.data.tables import LabelTable

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Possible delimiters of cells, and their names."""

WESTERN = "cp1252"
"""The encoding of Excel in Western Europe and America, read without asking where only single letters need it."""

SIGNS = "°µ²³½¼±§–—‘’“”„…•€£"
"""Signs that cells of Western tables hold, apart from letters."""

SPREADSHEETS = {".xlsx": "openpyxl", ".xlsm": "openpyxl", ".xls": "xlrd", ".ods": "odfpy"}
"""Suffixes of spreadsheets, and the package with which pandas reads each."""

PARQUET = (".parquet", ".pq")
TEXTS = (".csv", ".tsv", ".txt", ".tab")

_SAMPLE = 200  # lines in which the delimiter is detected
_WHOLE = re.compile(r"[+-]?\d+")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_COMMA = re.compile(r"[+-]?\d*,\d+")
_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")


def is_table(path: Path) -> bool:
    """Return True if the name of a file is that of a table."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith((*TEXTS, *PARQUET, *SPREADSHEETS))


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
    suffix = path.suffix.lower()
    if suffix in SPREADSHEETS:
        header, rows, lines, description = _spreadsheet(path, SPREADSHEETS[suffix], sheet)
    elif suffix in PARQUET:
        header, rows, lines, description = _parquet(path)
    else:
        header, rows, lines, description = _text(path, encoding)
    _refuse_data(path, header, rows)
    counts = Counter(header)
    if twice := [name for name, count in counts.items() if name and count > 1]:
        raise DataError(f"{path}: the header repeats the columns {listed(twice)}. Keep one of each")
    if not any(header):
        raise DataError(f"{path}: expected a header with names of columns, found none")
    cells = pd.DataFrame(rows, columns=range(len(header)), dtype=object)
    cells = cells[[column for column, name in enumerate(header) if name]].set_axis([n for n in header if n], axis=1)
    table = LabelTable(path, cells, np.array(lines, dtype=np.int64), "row" if suffix in PARQUET else "line")
    table = table.where((cells != "").any(axis=1).to_numpy())
    if not len(table.rows):
        raise DataError(f"{path}: expected rows below the header, found none")
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

    A number that begins with a zero, such as ``007``, is text: an id. So is ``1,234`` in a column of which each comma
    may separate thousands.
    """
    signs = set()
    different = pd.unique(pd.Series(cells))
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


def _refuse_data(path: Path, header: list[str], rows: list[list[str]]) -> None:
    """Refuse a first line that names an image, or repeats cells of the columns below it: it is no header."""
    below = [{row[column] for row in rows} for column in range(len(header))]
    numbers = [name for name in header if _WHOLE.fullmatch(name) or _POINT.fullmatch(name)]
    repeated = [name for name, cells in zip(header, below, strict=True) if name and name in cells]
    image = next((name for name in header if name.lower().endswith(SUFFIXES)), "")
    if image or (len(repeated) > 1 and set(numbers) & set(repeated)):
        raise DataError(
            f"{path}: expected a header with names of columns, found the data {listed(header, 4)}; add a first line "
            "such as image,patient,site,Edema"
        )


def _text(path: Path, wanted: str | None) -> tuple[list[str], list[list[str]], list[int], str]:
    content = _unpacked(path)
    if wanted is not None:
        encoding, text = wanted, _as_wanted(path, content, wanted)
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding, text = "UTF-16", content.decode("utf-16", errors="replace")
    elif b"\0" in content:
        raise DataError(f"{path}: expected a table, found bytes that are not text")
    else:
        encoding, text = _decoded(path, content)
    if not text.strip():
        raise DataError(f"{path}: expected a table, found nothing")
    lines = text.splitlines(keepends=True)
    named = re.fullmatch(r'"?sep=(.)"?', lines[0].strip("\r\n"), re.IGNORECASE)  # as Excel writes it
    delimiter = named[1] if named and named[1] in DELIMITERS else _delimiter(lines)
    lines = ["\n", *lines[1:]] if named else lines
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    rows, numbers, started = [], [], 1
    try:
        for cells in reader:
            cells = [_plain(cell.strip()) for cell in cells]
            if not header and any(cells):
                header = cells
            elif header and any(cells):
                rows.append(_fitted(cells, header, f"{path}, line {started}"))
                numbers.append(started)
            started = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {started}: {error}; is a quote open there?") from None
    return header, rows, numbers, f"{DELIMITERS[delimiter]} between cells, {encoding}"


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix.lower() != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected gzip, found a damaged file: {error}") from None


def _plain(cell: str) -> str:
    """Return a cell without the signs by which Excel marks text: ``'0017`` and ``="0017"`` are 0017."""
    if cell.startswith(('="', "'")):
        return re.sub(r"""^'(?=[\d=+@-])|^="(.*)"$""", r"\1", cell)
    return cell


def _as_wanted(path: Path, content: bytes, encoding: str) -> str:
    try:
        return content.decode("utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding)
    except LookupError:
        raise DataError(
            f"data.encoding: expected an encoding such as gb18030, shift_jis or cp1251, found {encoding!r}"
        ) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: expected {encoding} (data.encoding), found the byte 0x{content[error.start]:02x}"
        ) from None


def _decoded(path: Path, content: bytes) -> tuple[str, str]:
    """Return UTF-8, or Windows-1252 if its letters stand alone, as in Müller; other languages' are garbage in it."""
    try:
        return "UTF-8", content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode(WESTERN, errors="replace")
    runs = re.findall(r"[^\x00-\x7f]+", text)
    if all(len(run) <= 2 and all(_is_western(sign) for sign in run) for run in runs):
        return "Windows-1252", text
    guess = from_bytes(content).best()
    name = guess.encoding if guess else "gb18030"
    words = re.findall(r"[^\W\d_]*[^\x00-\x7f]+[^\W\d_]*", str(guess)) if guess else []
    raise DataError(
        f"{path}: expected UTF-8, found another encoding, perhaps {name}{f' ({words[0]!r})' * bool(words)}; name it: "
        f"data.encoding: {name}; or save the table as UTF-8"
    )


def _is_western(sign: str) -> bool:
    return sign in SIGNS or unicodedata.name(sign, "").startswith("LATIN")


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
        raise DataError(f"{where}: expected {width} cells as in the header, found {len(cells)}")
    return cells[:width] + [""] * (width - len(cells))


def _spreadsheet(path: Path, package: str, wanted: str | None) -> tuple[list[str], list[list[str]], list[int], str]:
    _refuse_other_content(path)
    try:
        sheets = pd.read_excel(path, sheet_name=None, header=None, dtype=object)
    except ImportError:
        raise ConfigError(
            f"{path}: pandas reads such a spreadsheet with {package}, which is not installed: pip install {package}, "
            "or save the table as CSV"
        ) from None
    except Exception as error:  # the type of error depends on the package
        raise DataError(f"{path}: expected a spreadsheet, found: {error}") from None
    name = next(iter(sheets)) if wanted is None else wanted
    if name not in sheets:
        raise DataError(f"{path}: expected a sheet {name!r}, found {listed(sheets)}")
    sheet, others = sheets[name], [each for each in sheets if each != name]
    rows = _texts(sheet)
    first = next((number for number, row in enumerate(rows) if any(row)), 0)
    description = f"a spreadsheet, {name!r}"
    if others and wanted is None:
        description = f"only the sheet {name!r} was read, and {listed(others)} was not: --set '{{sheet: {others[0]}}}'"
    return rows[first] if rows else [], rows[first + 1 :], list(range(first + 2, len(rows) + 1)), description


def _refuse_other_content(path: Path) -> None:
    """Refuse web pages and texts, which exports of many systems name like a spreadsheet."""
    with path.open("rb") as file:
        start = file.read(512).removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith((b"PK", b"\xd0\xcf\x11\xe0", b"\x09")) or b"\0" in start:
        return
    page = start[:1] == b"<"
    found, cure = (
        ("a web page (HTML or XML)", "open it and save it") if page else ("a text", "rename it to .csv, or save it")
    )
    raise DataError(f"{path}: expected a spreadsheet, found {found}; {cure} as a spreadsheet")


def _parquet(path: Path) -> tuple[list[str], list[list[str]], list[int], str]:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # pyarrow has many errors
        raise DataError(f"{path}: expected a Parquet file, found: {error}") from None
    rows = _texts(frame)
    return [str(name).strip() for name in frame.columns], rows, list(range(1, len(rows) + 1)), "a Parquet file"


def _texts(cells: pd.DataFrame) -> list[list[str]]:
    filled = cells.astype(object).where(cells.notna(), "")
    return [[text_of(cell) for cell in row] for row in filled.itertuples(index=False, name=None)]
