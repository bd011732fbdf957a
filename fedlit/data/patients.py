"""Spellings of patient ids that denote the same patient."""

import re
import unicodedata

import numpy as np

NUMBER = re.compile(r"0*(\d+)(?:\.(\d*?)0*)?")
"""A number in plain digits: its whole part without leading zeros, and its decimals without those at the end."""

INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff]")
DASH = re.compile(r"(?<=[^\W\d_])[-_ \u2010-\u2015\u2212](?=\d)")
"""A separator between a letter and a number: P-12 equals P12, but 1-12 differs from 11-2."""

UNNAMED = (
    *("", "nan", "none", "null", "n/a", "<na>", "nat", "?", "unknown", "unbekannt", "inconnu", "desconocido"),
    *("#n/a", "#ref!", "#value!", "#name?", "#div/0!", "#null!", "#num!", "#nv", "#bezug!", "#wert!"),
)
"""Words for a missing name, and what spreadsheets show for a failed formula, in lower case."""

SHOWN = 3


def keys(patients: np.ndarray) -> np.ndarray:
    """Return one canonical spelling of each id, [N] str: numbers by value, no case, and no dash before digits.

    So ``1``, ``01``, ``1.0`` and ``" 1"`` are equal, as spreadsheets and data frames may write them, and so are
    ``P-12`` and ``p12``. Unicode forms and invisible characters do not matter either.
    """
    spellings, of_row = np.unique(np.asarray(patients).astype(str), return_inverse=True)
    return np.array([_key(spelling) for spelling in spellings.tolist()], dtype=str)[of_row]


def united(patients: np.ndarray) -> tuple[np.ndarray, str]:
    """Return one spelling for each patient, [N] str, the first that occurs, and a note about merged spellings, or "".

    Ids with a single spelling are returned unchanged.
    """
    original, patients = patients, np.asarray(patients).astype(str)
    _, first, of_row = np.unique(keys(patients), return_index=True, return_inverse=True)
    one = patients[first][of_row]
    other = one != patients
    if not other.any():
        return original, ""
    people = np.unique(of_row[other])
    shown = [" and ".join(repr(s) for s in np.unique(patients[of_row == p]).tolist()) for p in people[:SHOWN]]
    more = f"; and {len(people) - SHOWN} more" if len(people) > SHOWN else ""
    images = int(np.isin(of_row, people).sum())
    return one, (
        f"{len(people)} patient{'s' * (len(people) > 1)} with {images} images {'are' if len(people) > 1 else 'is'} "
        f"spelled in more than one way ({'; '.join(shown)}{more}): ids that are equal as numbers, or differ only in "
        "blanks, case or a dash, count as one patient, so that no patient is in two splits. If they are different "
        "people, set same_person: exact"
    )


def is_unnamed(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that do not name a patient or a hospital, [N] bool."""
    from pandas import isna

    words = np.char.lower(np.char.strip(np.asarray(values).astype(str)))
    return isna(values) | np.isin(words, UNNAMED)


def _key(spelling: str) -> str:
    trimmed = unicodedata.normalize("NFKC", INVISIBLE.sub("", spelling)).strip().casefold()
    trimmed = DASH.sub("", trimmed)
    number = NUMBER.fullmatch(trimmed)
    if number is None:
        return trimmed
    whole, decimals = number.groups()
    return f"{whole}.{decimals}" if decimals else whole
