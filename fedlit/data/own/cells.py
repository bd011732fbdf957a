"""What the cells of a table of one's own mean: labels, lists of findings, splits."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.data.labels import UNCERTAIN, near
from fedlit.data.records import listed
from fedlit.data.tables import Table

Meaning = Literal["positive", "negative", "uncertain", "blank"]

VALUE_OF: dict[str, float] = {"positive": 1.0, "negative": 0.0, "uncertain": UNCERTAIN, "blank": np.nan}

SPELLED: dict[str, Meaning] = {
    **dict.fromkeys(("1", "yes", "y", "true", "t", "positive", "pos", "present"), "positive"),
    **dict.fromkeys(("0", "no", "n", "false", "f", "negative", "neg", "absent"), "negative"),
    **dict.fromkeys(("-1", "uncertain", "possible", "equivocal", "?"), "uncertain"),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none", "unknown", "not mentioned"), "blank"),
}  # fmt: skip
"""How the four meanings of a label are spelled, in any case; ``values`` adds others."""

NO_FINDING = ("no finding", "no findings", "normal", "none")
"""Words in a list of findings that say that there is none."""

TOTALS = ("total", "totals", "sum", "summe", "gesamt", "insgesamt", "somme", "suma", "totale")
"""Words of a last row that counts the others, and is of no image."""

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("train_val", "trainval"), "train_val"),
}  # fmt: skip


RANGE = re.compile(r"\s*(<=|>=|<|>)\s*([+-]?\d+(?:[.,]\d+)?)\s*")
"""One end of a range of numbers."""

COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def folded(text: object) -> str:
    """Return a spelling without blanks and case, and a number by its value: ``1``, ``1.0`` and ``1,00`` are one."""
    number = _number(str(text))
    return str(text).strip().casefold() if number is None else f"{number:g}"


def meanings(values: Mapping[str, str], where: str = "data.values") -> dict[str, str]:
    """Return the meaning of each spelling, those of one's own included.

    Raises:
        ValueError: A meaning is not positive, negative, uncertain or blank.
    """
    for spelling, meaning in values.items():
        if meaning not in VALUE_OF:
            expected = ", ".join(VALUE_OF)
            raise ValueError(f"{where}: {spelling!r}: expected one of {expected}, found {meaning!r}")
    return SPELLED | {folded(spelling): meaning for spelling, meaning in values.items()}


def reader_of(values: Mapping[str, str], own: Mapping[str, str], column: str) -> Callable[[str], str | None]:
    """Return a function that gives the meaning of a cell of a column, None where it has none.

    Args:
        values: Meanings of spellings in all columns.
        own: Meanings of spellings, and of ranges of numbers such as ``>= 18 and < 65``, in this one, which count first.
        column: Its name, for messages.

    Raises:
        ValueError: A meaning is none, or a range is none.
    """
    where = f"data.values: {column!r}"
    spelled = meanings(values) | {folded(spelling): meaning for spelling, meaning in own.items()}
    meanings(own, where)
    ranges = [
        (_ends(spelling, where), meaning)
        for spelling, meaning in own.items()
        if spelling.lstrip().startswith(("<", ">"))
    ]
    named = {folded(spelling) for spelling in own}

    def meaning_of(cell: str) -> str | None:
        key, number = folded(cell), _number(cell)
        if not ranges or number is None or key in named:
            return spelled.get(key)
        within = {meaning for ends, meaning in ranges if all(compare(number, end) for compare, end in ends)}
        return within.pop() if len(within) == 1 else None

    return meaning_of


def read_labels(
    table: Table, columns: Sequence[str], values: Mapping[str, str], own: Mapping[str, Mapping[str, str]] | None = None
) -> np.ndarray:
    """Return columns of labels, [N, L] float32 in {0, 1, ``UNCERTAIN``, NaN}; ``own`` has the values of single columns.

    Raises:
        ValueError: A cell has no meaning; the message names line and column.
    """
    labels = np.empty((len(table.rows), len(columns)), dtype=np.float32)
    for position, column in enumerate(columns):
        special = (own or {}).get(column, {})
        of_row, spellings = pd.factorize(table.rows[column])
        means = [*map(reader_of(values, special, column), spellings)]
        if strange := [n for n, meaning in enumerate(means) if meaning is None]:
            wrong = np.isin(of_row, strange)
            found = spellings[of_row[np.argmax(wrong)]]
            shown = ", ".join(f"{spellings[n]!r} ({table.named(of_row == n)})" for n in strange[:5])
            expected = "a label such as 1, 0, -1, yes, no, positive, negative, uncertain or nothing"
            expected += f", or what data.values says of this column ({', '.join(special)})" if special else ""
            example = f"{column}: {{{found}: positive}}" if special else f"{found}: positive"
            raise ValueError(
                f"{table.at(wrong)}: column {column!r}: expected {expected}, found {found!r} ({wrong.sum()} such cells). They are "
                f"{shown}. Say what it means: data.values {{{example}}}"
            )
        labels[:, position] = np.array([VALUE_OF[meaning] for meaning in means], dtype=np.float32)[of_row]
    return labels


def findings_in(table: Table, column: str, separator: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return all findings that the lists of a column name, in alphabetical order."""
    found = {part for cell in table.rows[column].unique() for part in _parts(cell, separator)}
    return tuple(sorted(part for part in found if folded(part) not in _words(values)))


def read_findings(
    table: Table, column: str, separator: str, findings: Sequence[str], values: Mapping[str, str]
) -> np.ndarray:
    """Return lists such as ``Effusion|Mass`` as labels, [N, L] float32: 1 where named, else 0; NaN where nothing is known.

    Raises:
        ValueError: A list names something else; the message names line and column.
    """
    words = _words(values)
    position = {finding: number for number, finding in enumerate(findings)}
    of_row, lists = pd.factorize(table.rows[column])
    labels = np.zeros((len(lists), len(findings)), dtype=np.float32)
    for row, text in enumerate(lists):
        parts = _parts(text, separator)
        for part in parts:
            where = f"{table.at(of_row == row)}: column {column!r}"
            if part in position:
                labels[row, position[part]] = 1
            elif folded(part) not in words:
                hint = near(part, findings)
                raise ValueError(f"{where}: unknown finding {part!r} in {text!r}; {hint}. Add it to data.labels")
            elif len(parts) > 1 and words[folded(part)] != "blank":
                raise ValueError(f"{where}: expected {part!r} alone or findings, found {text!r}")
        if not parts or any(words.get(folded(part)) == "blank" and part not in position for part in parts):
            labels[row] = np.nan
    return labels[of_row]


def refuse_totals(table: Table) -> None:
    """Check that the last row is of an image, and does not count the others.

    Raises:
        ValueError: It does; the message names its line.
    """
    words = [cell for cell in table.rows.iloc[-1] if cell.casefold().rstrip(": ") in TOTALS]
    if words:
        last = np.arange(len(table.rows)) == len(table.rows) - 1
        raise ValueError(f"{table.at(last)}: a row of totals ({words[0]!r}), not of an image: remove it")


def split_words(splits: Mapping[str, str]) -> dict[str, str]:
    """Return the split that each word means, in lower case, those of one's own included.

    Raises:
        ValueError: A word means something that is no split.
    """
    for word, split in splits.items():
        if split not in SPLITS.values():
            expected = ", ".join(dict.fromkeys(SPLITS.values()))
            raise ValueError(f"data.splits: {word!r}: expected one of {expected}, found {split!r}")
    return SPLITS | {str(word).strip().casefold(): split for word, split in splits.items()}


def read_splits(table: Table, column: str, words: Mapping[str, str]) -> np.ndarray:
    """Return the split of each row, [N] "train", "val", "test" or "train_val".

    Args:
        table: The table.
        column: Its column with splits.
        words: The split that each word means.

    Raises:
        ValueError: A cell is empty, or says something else; the message names line and column.
    """
    splits = table.rows[column].str.casefold().map(words)
    wrong = splits.isna().to_numpy()
    if wrong.any():
        found = table.rows[column][wrong].iloc[0]
        raise ValueError(
            f"{table.at(wrong)}: column {column!r}: expected {listed(words, 20)}, found {found!r} ({wrong.sum()} such lines). "
            f"Say which split it is: data.splits {{{found or repr(found)}: test}}; or set data.split to null, and all is divided"
        )
    return splits.to_numpy(dtype=str)


def listed_rows(file: Path, table: str, ids: Sequence[np.ndarray]) -> np.ndarray:
    """Return which rows a list names, [N] bool.

    Args:
        file: The list, one id a line.
        table: Name of the table, for messages.
        ids: Ids of the rows, each [N] str; a line may name any of them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The list is empty, or a line names no row.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    lines = [line.strip().strip('"') for line in file.read_text(encoding="utf-8-sig").splitlines()]
    if not any(lines):
        raise ValueError(f"{file}: expected ids of patients or images, one a line, found none")
    known = set().union(*(each.tolist() for each in ids))
    if vain := [number for number, line in enumerate(lines, 1) if line and line not in known]:
        found = lines[vain[0] - 1]
        raise ValueError(
            f"{file}, line {vain[0]}: {found!r} is no patient and no image of {table} ({len(vain)} such lines)"
        )
    return np.any([np.isin(each, lines) for each in ids], axis=0)


def _number(cell: str) -> float | None:
    try:
        number = float(cell.replace(",", "."))
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _ends(text: str, where: str) -> list[tuple[Callable[[float, float], bool], float]]:
    """Return what a number in a range is compared with, and how."""
    ends = [RANGE.fullmatch(end) for end in text.split("and")]
    if None in ends:
        raise ValueError(f"{where}: expected a range such as '>= 18' or '>= 18 and < 65', found {text!r}")
    return [(COMPARISONS[end[1]], _number(end[2])) for end in ends]


def _parts(cell: str, separator: str) -> list[str]:
    return [stripped for part in cell.split(separator) if (stripped := part.strip())]


def _words(values: Mapping[str, str]) -> dict[str, str]:
    """Return the words in lists of findings that are none: what is negative, and what is blank."""
    blank = {word: meaning for word, meaning in SPELLED.items() if meaning == "blank"}
    return blank | dict.fromkeys(NO_FINDING, "negative") | {folded(word): meaning for word, meaning in values.items()}
