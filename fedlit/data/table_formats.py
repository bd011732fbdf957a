"""Formats of tables: text of any delimiter and encoding, spreadsheets and Parquet, read as rows of cells."""

import codecs
import csv
import gzip
import io
import re
import unicodedata
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pandas as pd
from charset_normalizer import from_bytes

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.groups import text_of
from fedlit.data.records import listed

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


def is_table(path: Path) -> bool:
    """Return True if the name of a file is that of a table."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith((*TEXTS, *PARQUET, *SPREADSHEETS))


def read_cells(
    path: Path, sheet: str | None = None, encoding: str | None = None
) -> tuple[list[str], list[Sequence[str]], list[int], str]:
    """Return the header, the rows of cells, their lines and a description of the format of a table that exists.

    The sheet is by default the first. The encoding of text is by default UTF-8, UTF-16 with its mark, or Windows-1252.

    Raises:
        ConfigError: The package that reads such spreadsheets is not installed.
        DataError: The file is not a table, has a row with more or fewer cells than the header, or is text in another
            encoding.
    """
    suffix = path.suffix.lower()
    if suffix in SPREADSHEETS:
        return _spreadsheet(path, SPREADSHEETS[suffix], sheet)
    return _parquet(path) if suffix in PARQUET else _text(path, encoding)


def _text(path: Path, wanted: str | None) -> tuple[list[str], list[Sequence[str]], list[int], str]:
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
    if text.lstrip().startswith("<"):
        raise DataError(f"{path}: expected a table, found a web page (HTML or XML); open it and save it as a table")
    lines = list(io.StringIO(text, newline=""))  # a form feed or a Unicode separator ends no line
    named = re.fullmatch(r'"?sep=(.)"?', lines[0].strip("\r\n"), re.IGNORECASE)  # as Excel writes it
    delimiter = named[1] if named and named[1] in DELIMITERS else _delimiter(lines)
    lines = ["\n", *lines[1:]] if named else lines
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    rows: list[Sequence[str]] = []
    numbers, started = [], 1
    try:
        for cells in reader:
            filled = any(map(str.strip, cells))
            if not header and filled:
                header = [cell.strip() for cell in cells]
            elif filled:
                fits = len(cells) == len(header)
                rows.append(tuple(cells if fits else _fitted(cells, header, f"{path}, line {started}")))
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
        f"{path}: expected UTF-8, found another encoding, perhaps {name}{f' ({words[0]!r})' * bool(words)}; save the "
        f"table as UTF-8, or name the encoding of a table of your own: data.encoding: {name}"
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
    if any(map(str.strip, cells[width:])) or len(cells) < least:
        raise DataError(f"{where}: expected {width} cells as in the header, found {len(cells)}")
    return cells[:width] + [""] * (width - len(cells))


def _spreadsheet(path: Path, package: str, wanted: str | None) -> tuple[list[str], list[Sequence[str]], list[int], str]:
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
    return list(rows[first]) if rows else [], rows[first + 1 :], list(range(first + 2, len(rows) + 1)), description


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


def _parquet(path: Path) -> tuple[list[str], list[Sequence[str]], list[int], str]:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # pyarrow has many errors
        raise DataError(f"{path}: expected a Parquet file, found: {error}") from None
    rows = _texts(frame)
    return [str(name).strip() for name in frame.columns], rows, list(range(1, len(rows) + 1)), "a Parquet file"


def _texts(cells: pd.DataFrame) -> list[Sequence[str]]:
    filled = cells.astype(object).where(cells.notna(), "")
    return [[text_of(cell) for cell in row] for row in filled.itertuples(index=False, name=None)]
