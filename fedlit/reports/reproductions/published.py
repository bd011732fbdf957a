"""Published results: a paper's own tables, as text, in ``published.json`` of its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.argument_types import fits
from fedlit.reports.table import Table

PUBLISHED = "published.json"
"""Name of the file in the folder of a paper."""


@dataclass(frozen=True)
class Published:
    """A paper's own table.

    Its cells are text, as printed, to prevent calculations with them: they come from other data and other hardware.
    Values are compared only for a benchmark whose data and split are public (FLamby's).
    """

    title: str  # Such as ``Table 3``.
    caption: str  # One line on its content.
    columns: tuple[str, ...]  # Names of all columns, including those that name a row.
    rows: tuple[tuple[str | None, ...], ...]  # One cell per column; None if the paper has no value.
    note: str = ""  # Text below the table, or "".

    def markdown(self) -> str:
        """Return the table with its title above and its note below."""
        lines = [f"{self.title}. {self.caption}", ""]
        lines += grid(self.columns, [[cell or "-" for cell in row] for row in self.rows])
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


@dataclass(frozen=True)
class Paper:
    """A paper: its reference, and its tables by title."""

    source: str
    tables: dict[str, Published]


def read_paper(*homes: Path) -> Paper:
    """Read a paper's tables from the first of these folders that has them.

    Raises:
        ConfigError: There is no such file, or a key is missing or has another type.
    """
    file = next((file for folder in homes if (file := folder / PUBLISHED).is_file()), None)
    if file is None:
        raise ConfigError(f"tables: expected {homes[0] / PUBLISHED} with these tables of the paper, found none")
    try:
        return _parsed(documents.parse_json(documents.text_of(file)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        keys = "source, and tables by title with caption, columns and rows"
        raise ConfigError(f"{file}: expected JSON with {keys}; {type(error).__name__}: {error}") from error


def _parsed(document: dict[str, Any]) -> Paper:
    tables = {}
    for title, table in document["tables"].items():
        columns, rows, caption, note = table["columns"], table["rows"], table["caption"], table.get("note", "")
        if not (fits(columns, list[str]) and fits([caption, note], list[str])):
            raise ValueError(f"{title}: expected text in columns, caption and note")
        for row in rows:
            if not fits(row, list[str | None]) or len(row) != len(columns):
                raise ValueError(f"{title}: expected {len(columns)} cells of text or null in each row, found {row}")
        tables[title] = Published(title, caption, tuple(columns), tuple(map(tuple, rows)), note)
    return Paper(document["source"], tables)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return Table("", tuple(columns), (), rows).markdown()
