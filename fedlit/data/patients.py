"""Who is who: spellings of a patient's id that are one patient."""

import re
import warnings

import numpy as np

NUMBER = re.compile(r"0*(\d+)(?:\.(\d*?)0*)?")
"""A number in plain digits: its whole part without leading zeros, and its decimals without those at the end."""

SHOWN = 3


def keys(patients: np.ndarray) -> np.ndarray:
    """Return one text for all spellings of an id, [N] str: without blanks around it, and numbers by their value.

    So ``1``, ``01``, ``1.0`` and ``" 1"`` are one, as a spreadsheet or a data frame may have written them.
    """
    spellings, of_row = np.unique(np.asarray(patients).astype(str), return_inverse=True)
    return np.array([_key(spelling) for spelling in spellings.tolist()], dtype=str)[of_row]


def united(patients: np.ndarray) -> tuple[np.ndarray, str]:
    """Return one spelling for each patient, the first that occurs, [N] str, and what was united in words, or "".

    Ids that have one spelling stay as they are.
    """
    given, patients = patients, np.asarray(patients).astype(str)
    _, first, of_row = np.unique(keys(patients), return_index=True, return_inverse=True)
    one = patients[first][of_row]
    other = one != patients
    if not other.any():
        return given, ""
    people = np.unique(of_row[other])
    shown = [" and ".join(repr(s) for s in np.unique(patients[of_row == p]).tolist()) for p in people[:SHOWN]]
    more = f"; and {len(people) - SHOWN} more" if len(people) > SHOWN else ""
    images = int(np.isin(of_row, people).sum())
    return one, (
        f"{len(people)} patient{'s' * (len(people) > 1)} with {images} images {'are' if len(people) > 1 else 'is'} spelled in "
        f"more than one way ({'; '.join(shown)}{more}): ids that are equal as numbers or without blanks are taken for one "
        "patient, so that none is in two splits. Spell each id in one way if they are different people"
    )


def warn_united(patients: np.ndarray) -> np.ndarray:
    """Return one spelling for each patient, [N] str, and warn where there were several."""
    one, note = united(patients)
    if note:
        warnings.warn(note, stacklevel=3)
    return one


def _key(spelling: str) -> str:
    trimmed = spelling.strip()
    number = NUMBER.fullmatch(trimmed)
    if number is None:
        return trimmed
    whole, decimals = number.groups()
    return f"{whole}.{decimals}" if decimals else whole
