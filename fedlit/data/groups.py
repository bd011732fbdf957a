"""Groups of images, such as sex, age and view, by which the predictions of a model are compared."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlit.core.errors import DataError
from fedlit.data.labels import similar_names
from fedlit.data.patients import UNNAMED

if TYPE_CHECKING:
    import pandas as pd

CANONICAL = ("sex", "age", "view", "scanner")
"""Names of groups that all data sets share; a column that differs from one only in case gets this name."""

AGES = (18.0, 40.0, 65.0)
"""Edges of the bands of ages, in years, unless others are stated."""

OLDEST = 120
"""Largest possible age in years; a larger one is unknown."""

MOST = 50
"""Largest number of different groups of one kind."""

UNKNOWN = frozenset((*UNNAMED, "u", "unk", "na", "-", "not available", "not specified", "not reported"))
"""Words for an unknown group, in lower case."""

_SEXES = {"f": "female", "female": "female", "m": "male", "male": "male"}
_AGE = re.compile(r"(?:>=?\s*)?(-?\d+(?:[.,]\d+)?)\s*([YMWD]?)\+?", re.IGNORECASE)
_IN_A_YEAR = {"": 1, "Y": 1, "M": 12, "W": 365.25 / 7, "D": 365.25}


@dataclass(frozen=True)
class GroupColumn:
    """A column of a source whose cells are groups.

    Attributes:
        name: Name of the group, such as ``sex``.
        column: The column.
        edges: Ascending edges of the bands of a number; () for words.
        stated: True if a user stated the edges.
    """

    name: str
    column: str
    edges: tuple[float, ...] = ()
    stated: bool = False

    def read(self, cells: pd.Series, file: Path, places: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return the group of each image, [N] str, "" if unknown, and notes about unknown ones.

        Args:
            cells: The cells of the column, with one for each image.
            file: The file, for messages.
            places: Place of each cell in the file, such as "line 7", [N] str.

        Raises:
            DataError: A cell of bands is neither a number nor unknown, or there are no or more than ``MOST`` groups.
        """
        where = f"{file}: column {self.column!r}"
        texts, row_of = np.unique(texts_of(cells), return_inverse=True)
        read = [self._number(text) for text in texts.tolist()] if self.edges else []
        numbers = [number for number in read if number is not None]
        if words := [place for place, number in enumerate(read) if number is None]:
            wrong = np.isin(row_of, words)
            first, expected = int(np.argmax(wrong)), "an age such as 58 or 058Y" if self.name == "age" else "a number"
            raise DataError(
                f"{where}, {places[first]}: expected {expected} for the group {self.name!r}, found "
                f"{str(texts[row_of[first]])!r} ({wrong.sum()} such cells); correct it, or empty the cell"
            )
        sexes = _SEXES if self.name == "sex" else {}
        named = [self._band(number) for number in numbers] or [sexes.get(t.casefold(), t) for t in texts.tolist()]
        different = sorted(set(named) - {""})
        if not 0 < len(different) <= MOST:
            raise DataError(
                f"{where}: expected 1 to {MOST} different groups, found {len(different)}; remove {self.name!r} from "
                f"data.groups, or band numbers with data.bands: {{{self.name}: [EDGE, ...]}}"
            )
        self._warn(different, where, [number for number in numbers if np.isfinite(number)])
        groups = np.array(named, dtype=str)[row_of]
        if not (unknown := groups == "").any():
            return groups, []
        impossible = np.isin(row_of, np.flatnonzero(np.isinf(numbers))).sum()
        why = f", {impossible:,} of them because of an impossible age" if impossible else ""
        counts = f"group {self.name!r} is unknown for {unknown.sum():,} of {len(groups):,} images{why}"
        return groups, [f"{counts} (column {self.column!r})"]

    def _number(self, text: str) -> float | None:
        """Return a cell as a number, in years for ages; NaN if it is unknown, inf if impossible, None for a word."""
        if not text:
            return np.nan
        match = _AGE.fullmatch(text)
        if match is None or (match[2] and self.name != "age"):
            return None
        number = float(match[1].replace(",", ".")) / _IN_A_YEAR[match[2].upper()]
        return number if self.name != "age" or 0 <= number <= OLDEST else np.inf

    def _band(self, number: float) -> str:
        """Return the label of a number's band, such as ``18-39``."""
        if not np.isfinite(number):
            return ""
        edges = (0.0, *self.edges) if self.name == "age" else self.edges
        place = bisect_right(edges, number)
        if place == 0:
            return f"<{edges[0]:g}"
        if place == len(edges):
            return f"{edges[-1]:g}+"
        low, high = edges[place - 1 : place + 1]
        whole = all(edge == int(edge) for edge in (low, high))
        return f"{low:g}-<{high:g}" if not whole else f"{low:g}-{high - 1:g}" if high - low > 1 else f"{low:g}"

    def _warn(self, different: Sequence[str], where: str, numbers: Sequence[float]) -> None:
        if len(different) == 1:
            warnings.warn(
                f"{where}: expected several groups for {self.name!r}, found only {different[0]!r}: these data alone "
                "allow no comparison",
                stacklevel=4,
            )
        outside = [edge for edge in self.edges if self.stated and not min(numbers) < edge <= max(numbers)]
        if outside:
            warnings.warn(
                f"{where}: expected edges of data.bands between {min(numbers):g} and {max(numbers):g}, found "
                f"{', '.join(f'{edge:g}' for edge in outside)} for {self.name!r}: some bands have no image here",
                stacklevel=4,
            )


def group_columns(
    groups: Sequence[str] | Mapping[str, str] | None,
    bands: Mapping[str, Sequence[float]] | None,
    given: Mapping[str, str],
) -> tuple[GroupColumn, ...]:
    """Return the columns of the groups that a user asks for.

    Args:
        groups: Names of groups or of columns, or a map from names to columns.
        bands: Edges of the bands of numbers, by group; ages have ``AGES`` otherwise.
        given: Columns of the groups that the source gives, by name.

    Raises:
        DataError: Two groups have the same name, edges do not ascend or are impossible, or bands are stated for
            another name than that of a group.
    """
    pairs = groups.items() if isinstance(groups, Mapping) else ((name, given.get(name, name)) for name in groups or ())
    columns: dict[str, str] = {}
    for asked, column in pairs:
        name = _canonical(str(asked))
        if not name or name in columns:
            raise DataError(f"data.groups: expected different names, found {str(asked)!r} twice or empty")
        columns[name] = str(column)
    edges = {_canonical(str(name)): tuple(float(edge) for edge in of) for name, of in (bands or {}).items()}
    for name, of in edges.items():
        if name not in columns:
            hint = similar_names(name, list(columns)) if columns else "data.groups is empty; name its column there"
            raise DataError(f"data.bands: {name!r} is not in data.groups; {hint}")
        if not of or any(not low < high for low, high in pairwise(of)) or not np.isfinite(of).all():
            raise DataError(f"data.bands: {name}: expected ascending edges such as [18, 40, 65], found {list(of)}")
        if name == "age" and not 0 < of[0] <= of[-1] <= OLDEST:
            raise DataError(f"data.bands: age: expected edges above 0, up to {OLDEST} years, found {list(of)}")
    return tuple(
        GroupColumn(name, column, edges.get(name, AGES if name == "age" else ()), name in edges)
        for name, column in columns.items()
    )


def _canonical(name: str) -> str:
    name = name.strip()
    return name.casefold() if name.casefold() in CANONICAL else name


def texts_of(cells: Sequence | np.ndarray) -> np.ndarray:
    """Return cells as text, [N] str, with "" for unknown ones and no decimals for whole numbers."""
    import pandas as pd

    column = pd.Series(cells).astype(object)
    texts = column.where(column.notna(), "").map(lambda cell: " ".join(text_of(cell).split()))
    values, row_of = np.unique(texts.to_numpy(dtype=str), return_inverse=True)
    return np.array(["" if text.casefold() in UNKNOWN else text for text in values.tolist()], dtype=str)[row_of]


def text_of(cell: object) -> str:
    """Return a typed cell as text; 12.0 becomes 12, because spreadsheets and columns with gaps hold only decimals."""
    if isinstance(cell, float | np.floating) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def check_groups(groups: Mapping[str, Sequence | np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Return groups of N images as text, [N] str each, with "" for unknown ones.

    Raises:
        DataError: A group has no name, not one value for each image, or more than ``MOST`` different values.
    """
    checked = {}
    for name, values in groups.items():
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"records: expected names of groups such as 'sex', found {name!r}")
        name = str(name)  # a NumPy text is a str
        if np.ndim(values) != 1 or len(values) != size:
            found = f"{len(values)}" if np.ndim(values) else repr(values)
            raise DataError(f"records: group {name!r}: expected {size} values, one per image, found {found}")
        checked[name] = texts_of(values)
        if (different := len(np.unique(checked[name]))) > MOST + 1:
            raise DataError(f"records: group {name!r}: expected at most {MOST} groups, found {different}")
    return checked
