"""Meaning of the cells of a custom table: labels, lists of findings, splits."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.labels import UNCERTAIN, similar_names
from fedlit.data.records import listed
from fedlit.data.tables import LabelTable, has_thousands

Meaning = Literal["positive", "negative", "uncertain", "blank"]

VALUE_OF: dict[str, float] = {"positive": 1.0, "negative": 0.0, "uncertain": UNCERTAIN, "blank": np.nan}

SPELLED: dict[str, Meaning] = {
    **dict.fromkeys(("1", "yes", "y", "true", "t", "positive", "pos", "present"), "positive"),
    **dict.fromkeys(("0", "no", "n", "false", "f", "negative", "neg", "absent"), "negative"),
    **dict.fromkeys(("-1", "uncertain", "possible", "equivocal", "?"), "uncertain"),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none", "unknown", "not mentioned"), "blank"),
}  # fmt: skip
"""Spellings of the four meanings of a label, in any case; ``values`` adds others."""

NO_FINDING = ("no finding", "no findings", "normal", "none")
"""Words in a list of findings that mean that there is no finding."""

TOTALS = ("total", "totals", "sum", "summe", "gesamt", "insgesamt", "somme", "suma", "totale")
"""Words of a last row with totals, which is not an image."""

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("train_val", "trainval"), "train_val"),
}  # fmt: skip

RANGE = re.compile(r"\s*(<=|>=|<|>)\s*([+-]?\d+(?:[.,]\d+)?)\s*")
"""One end of a range of numbers."""

QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
"""An entry of a list in Python or JSON."""

COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def folded(text: object) -> str:
    """Return a spelling without blanks and case; numbers by value, so ``1``, ``1.0`` and ``1,00`` are equal."""
    number = _number(str(text))
    return str(text).strip().casefold() if number is None else f"{number:g}"


def reader_of(values: Mapping[str, str], of_column: Mapping[str, str], column: str) -> Callable[[str], str | None]:
    """Return a function that returns the meaning of a cell of a column, or None for an unknown cell.

    Args:
        values: Meanings of spellings in all columns.
        of_column: Meanings of spellings, and of ranges of numbers such as ``>= 18 and < 65``, in this column; they take
            precedence.
        column: Name of the column, for messages.

    Raises:
        DataError: A range is invalid.
    """
    where = f"data.values: {column!r}"
    spelled = SPELLED | {folded(text): meaning for given in (values, of_column) for text, meaning in given.items()}
    ranges = [
        (_ends(spelling, where), meaning)
        for spelling, meaning in of_column.items()
        if spelling.lstrip().startswith(("<", ">"))
    ]
    named = {folded(spelling) for spelling in of_column}

    def meaning_of(cell: str) -> str | None:
        key, number = folded(cell), _number(cell)
        if not ranges or number is None or key in named:
            return spelled.get(key)
        matching = {meaning for ends, meaning in ranges if all(compare(number, end) for compare, end in ends)}
        return matching.pop() if len(matching) == 1 else None

    return meaning_of


def read_labels(
    table: LabelTable,
    columns: Sequence[str],
    values: Mapping[str, str],
    of_columns: Mapping[str, Mapping[str, str]] | None = None,
) -> np.ndarray:
    """Return columns of labels, [N, L] float32 in {0, 1, ``UNCERTAIN``, NaN}.

    Args:
        table: The table.
        columns: Names of the columns.
        values: Meanings of spellings in all columns.
        of_columns: Meanings of spellings in single columns.

    Raises:
        DataError: A cell has no meaning; the message names line and column.
    """
    labels = np.empty((len(table.rows), len(columns)), dtype=np.float32)
    for position, column in enumerate(columns):
        special = (of_columns or {}).get(column, {})
        of_row, spellings = pd.factorize(table.rows[column])
        unnamed = [cell for cell in spellings if cell not in special and cell not in values]
        if has_thousands(unnamed):
            grouped = of_row == next(n for n, cell in enumerate(spellings) if has_thousands([cell]))
            cell = table.rows[column][grouped].iloc[0]
            raise DataError(
                f"{table.at(grouped)}: column {column!r}: expected a number with one reading, found {cell!r}, which is "
                f"{cell.replace(',', '')} or {cell.replace(',', '.', 1)}; write numbers without signs for thousands, "
                "and with a point for decimals"
            )
        means = [*map(reader_of(values, special, column), spellings)]
        if strange := [n for n, meaning in enumerate(means) if meaning is None]:
            wrong = np.isin(of_row, strange)
            first = spellings[of_row[np.argmax(wrong)]]
            shown = ", ".join(f"{spellings[n]!r} ({table.named(of_row == n)})" for n in strange[:5])
            expected = "a label such as 1, 0, -1, yes, no, positive, negative, uncertain or nothing"
            expected += f", or a value of this column in data.values ({', '.join(special)})" if special else ""
            example = f"{column}: {{{first}: positive}}" if special else f"{first}: positive"
            raise DataError(
                f"{table.at(wrong)}: column {column!r}: expected {expected}, found {first!r} ({wrong.sum()} such "
                f"cells). They are {shown}. Define their meaning: data.values {{{example}}}"
            )
        labels[:, position] = np.array([VALUE_OF[meaning] for meaning in means], dtype=np.float32)[of_row]
    return labels


def findings_in(table: LabelTable, column: str, separator: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return all findings in the lists of a column, in alphabetical order."""
    parts = {part for cell in table.rows[column].unique() for part in parts_of(cell, separator)}
    return tuple(sorted(part for part in parts if folded(part) not in _words(values)))


def read_findings(
    table: LabelTable, column: str, separator: str, findings: Sequence[str], values: Mapping[str, str]
) -> np.ndarray:
    """Return lists such as ``Effusion|Mass`` as labels, [N, L] float32: 1 for named findings, NaN for a blank list.

    Raises:
        DataError: A list has an unknown finding; the message names line and column.
    """
    words = _words(values)
    position = {finding: number for number, finding in enumerate(findings)}
    of_row, lists = pd.factorize(table.rows[column])
    labels = np.zeros((len(lists), len(findings)), dtype=np.float32)
    for row, text in enumerate(lists):
        parts = parts_of(text, separator)
        for part in parts:
            where = f"{table.at(of_row == row)}: column {column!r}"
            if part in position:
                labels[row, position[part]] = 1
            elif folded(part) not in words:
                hint = similar_names(part, findings)
                raise DataError(f"{where}: unknown finding {part!r} in {text!r}; {hint}. Add it to data.labels")
            elif len(parts) > 1 and words[folded(part)] != "blank":
                raise DataError(f"{where}: expected {part!r} or findings, found {text!r}")
        if not parts or any(words.get(folded(part)) == "blank" and part not in position for part in parts):
            labels[row] = np.nan
    return labels[of_row]


def joined_labels(labels: np.ndarray, image_of: np.ndarray, rule: str) -> np.ndarray:
    """Return labels of images, [N, L], from those of several rows about them, [R, L].

    Args:
        labels: The labels of the rows in {0, 1, ``UNCERTAIN``, NaN}. A blank one has no say.
        image_of: The image of each row, [R].
        rule: ``any``, by which 1 wins over uncertain, and that over 0, or ``vote``: 1 or 0 if more of the rows say so
            than anything else, otherwise uncertain.
    """
    images = int(image_of.max()) + 1
    positive, uncertain, negative = (np.zeros((images, labels.shape[1])) for _ in range(3))
    for counts, value in ((positive, 1), (uncertain, UNCERTAIN), (negative, 0)):
        np.add.at(counts, image_of, labels == value)
    if rule == "any":
        found = np.where(positive > 0, 1, np.where(uncertain > 0, UNCERTAIN, 0))
    else:
        yes, no = positive > np.maximum(uncertain, negative), negative > np.maximum(uncertain, positive)
        found = np.where(yes, 1, np.where(no, 0, UNCERTAIN))
    return np.where(positive + uncertain + negative > 0, found, np.nan).astype(np.float32)


def refuse_totals(table: LabelTable) -> None:
    """Check that the last row is an image, and not a row of totals.

    Raises:
        DataError: It is a row of totals; the message names its line.
    """
    words = [cell for cell in table.rows.iloc[-1] if cell.casefold().rstrip(": ") in TOTALS]
    if words:
        last = np.arange(len(table.rows)) == len(table.rows) - 1
        raise DataError(f"{table.at(last)}: expected an image, found a row of totals ({words[0]!r}); remove it")


def split_words(splits: Mapping[str, str]) -> dict[str, str]:
    """Return the split of each word, in lower case, including custom words.

    Raises:
        DataError: The value of a word is not a split.
    """
    for word, split in splits.items():
        if split not in SPLITS.values():
            expected = ", ".join(dict.fromkeys(SPLITS.values()))
            raise DataError(f"data.splits: {word!r}: expected one of {expected}, found {split!r}")
    return SPLITS | {str(word).strip().casefold(): split for word, split in splits.items()}


def read_splits(table: LabelTable, column: str, words: Mapping[str, str]) -> np.ndarray:
    """Return the split of each row, [N] "train", "val", "test" or "train_val".

    Args:
        table: The table.
        column: Name of the column.
        words: The split of each word.

    Raises:
        DataError: A cell is empty, or has an unknown word; the message names line and column.
    """
    splits = table.rows[column].str.casefold().map(words)
    wrong = splits.isna().to_numpy()
    if wrong.any():
        word = table.rows[column][wrong].iloc[0]
        raise DataError(
            f"{table.at(wrong)}: column {column!r}: expected {listed(words, 20)}, found {word!r} ({wrong.sum()} such "
            f"lines). Define its split: data.splits {{{word or repr(word)}: test}}; or set data.split to null, to "
            "divide all images"
        )
    return splits.to_numpy(dtype=str)


def listed_rows(file: Path, table: str, ids: Sequence[np.ndarray]) -> np.ndarray:
    """Return a mask of the rows whose ids are in a list, [N] bool.

    Args:
        file: The list, with one id per line.
        table: Name of the table, for messages.
        ids: Ids of the rows, each [N] str; a line may name any of them.

    Raises:
        MissingFileError: There is no such file.
        DataError: The list is empty, or an id is unknown.
    """
    if not file.is_file():
        raise MissingFileError(f"{file}: no such file")
    lines = [line.strip().strip('"') for line in file.read_text(encoding="utf-8-sig").splitlines()]
    if not any(lines):
        raise DataError(f"{file}: expected ids of patients or images, one per line, found none")
    known = set().union(*(each.tolist() for each in ids))
    if unknown := [number for number, line in enumerate(lines, 1) if line and line not in known]:
        raise DataError(
            f"{file}, line {unknown[0]}: expected a patient or an image of {table}, found {lines[unknown[0] - 1]!r} "
            f"({len(unknown)} such lines)"
        )
    return np.any([np.isin(each, lines) for each in ids], axis=0)


def _number(cell: str) -> float | None:
    try:
        number = float(cell.replace(",", "."))
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _ends(text: str, where: str) -> list[tuple[Callable[[float, float], bool], float]]:
    ends = [RANGE.fullmatch(end) for end in text.split("and")]
    if None in ends:
        raise DataError(f"{where}: expected a range such as '>= 18 and < 65', found {text!r}")
    return [(COMPARISONS[end[1]], _number(end[2])) for end in ends]


def parts_of(cell: str, separator: str) -> list[str]:
    """Return the entries of a list in a cell, such as ``Edema|Mass`` or, as Python and JSON write it, ``['Edema']``."""
    if cell[:1] + cell[-1:] in ("[]", "{}", "()"):
        cell = cell[1:-1]
        if quoted := QUOTED.findall(cell):
            return [stripped for one, other in quoted if (stripped := (one or other).strip())]
        separator = separator if separator in cell else ","
    return [stripped for part in cell.split(separator) if (stripped := part.strip())]


def _words(values: Mapping[str, str]) -> dict[str, str]:
    """Return the words in lists of findings that are negative or blank, and so are not findings."""
    blank = {word: meaning for word, meaning in SPELLED.items() if meaning == "blank"}
    return blank | dict.fromkeys(NO_FINDING, "negative") | {folded(word): meaning for word, meaning in values.items()}
