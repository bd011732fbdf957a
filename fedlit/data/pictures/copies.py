"""Copies of images that would leak from training to test: errors or warnings, with a figure of the pairs."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedlit.core.errors import DataError
from fedlit.data.patients import keys
from fedlit.data.records import Records, listed

Duplicates = Literal["refuse", "allow"]
"""Rule for copies that leak: an error or a warning."""


def shared(patients: np.ndarray, names: np.ndarray) -> str:
    """Return what is wrong with equal images: they have several patients, or nothing names patients."""
    return "are equal to others" if np.array_equal(patients, names) else "belong to more than one patient"


def notes_of_copies(cache: Path, duplicates: Duplicates, names: Sequence[str], read: Sequence[Records]) -> list[str]:
    """Search a source for images of two patients, or two sources for common images; return notes about near-duplicates.

    Args:
        cache: The cache folder, also for the figure of the pairs.
        duplicates: Rule for copies.
        names: Names of one or two sources.
        read: Their records.

    Raises:
        DataError: There are copies, and ``duplicates`` is ``refuse``.
    """
    from fedlit.data.pictures.duplicates import (  # imports PyTorch, which takes seconds
        cached_pairs,
        draw_pairs,
        pairs_file,
    )

    one, other, apart = read[0], read[-1], None
    stores, images = (one.store, other.store), (one.names, other.names)
    files = [one.store.path.name, other.store.path.name]
    what = f"are in {names[-1]!r} too"
    leak = (
        "the same patients would be in the training of one site and in the test of another (for example, RSNA "
        "Pneumonia and SIIM Pneumothorax are taken from NIH ChestX-ray14)"
    )
    if len(names) == 1:
        apart = (keys(one.patients),) * 2
        files[1] = hashlib.sha256("\0".join(apart[0].tolist()).encode()).hexdigest()[:24]
        what = shared(one.patients, one.names)
        leak = "one person's images would be in training and test, or at two sites"
    pairs = cached_pairs(cache, *stores, tuple(files), apart)
    if not pairs:
        return []
    figure, notes = draw_pairs(pairs_file(cache, *names), pairs, stores, images), []
    same = [f"{images[0][pair.one]} and {images[1][pair.other]}" for pair in pairs if pair.same]
    if like := len(pairs) - len(same):
        of = " and ".join(map(repr, names))
        notes = [f"{like} images of {of} are near-duplicates, perhaps cropped copies: see {figure}"]
        warnings.warn(notes[0], stacklevel=5)
    if same:
        message = (
            f"{len(same)} images of {names[0]!r} {what}, the first are {listed(same, 2)}, perhaps recompressed or "
            f"resized (see {figure}): {leak}"
        )
        if duplicates == "refuse":
            raise DataError(f"{message}. Remove one of each, or set data.duplicates to allow.")
        warnings.warn(message, stacklevel=5)
    return notes
