"""What the papers print: their own numbers, as text, in ``papers/``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlit.core.errors import ConfigError

PAPERS = Path(__file__).parent / "papers"


@dataclass(frozen=True)
class Published:
    """A paper's own table.

    Its cells are text, as printed, so that nobody calculates with them: they come from other data and other hardware. Only
    a benchmark, whose data and split are public, is compared by value (``flamby/benchmark.py``).
    """

    title: str  # Such as ``Table 3``.
    caption: str  # What it shows.
    columns: tuple[str, ...]  # Their names, those that name a row included.
    rows: tuple[tuple[str | None, ...], ...]  # A cell a column; None where the paper has no number.
    note: str = ""  # What a reader has to know, or "".

    def markdown(self) -> str:
        """The table with its title above and its note below."""
        lines = [f"{self.title}. {self.caption}", ""]
        lines += grid(self.columns, [[cell or "-" for cell in row] for row in self.rows])
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


@dataclass(frozen=True)
class Paper:
    """A paper: where it is published, and its tables by title."""

    source: str
    tables: dict[str, Published]


def read_paper(name: str, *homes: Path) -> Paper:
    """Read a paper's tables from ``NAME.json`` in one of the folders, or else from those that ship.

    Raises:
        ConfigError: There is no such file, or a key is missing.
    """
    file = next((file for folder in (*homes, PAPERS) if (file := folder / f"{name}.json").is_file()), None)
    if file is None:
        raise ConfigError(f"paper: expected {(*homes, PAPERS)[0] / name}.json, or one of {_shipped()}, found {name!r}")
    try:
        return _parsed(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        keys = "source, and tables by title with caption, columns and rows"
        raise ConfigError(f"{file}: expected JSON with {keys}; {type(error).__name__}: {error}") from error


def _shipped() -> str:
    return ", ".join(sorted(file.stem for file in PAPERS.glob("*.json")))


def _parsed(found: dict[str, Any]) -> Paper:
    tables = {}
    for title, table in found["tables"].items():
        columns, rows = tuple(table["columns"]), tuple(map(tuple, table["rows"]))
        tables[title] = Published(title, table["caption"], columns, rows, table.get("note", ""))
    return Paper(found["source"], tables)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return [lines[0], "|---" * len(columns) + "|", *lines[1:]]
