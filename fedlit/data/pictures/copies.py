"""Copies of pictures where they would leak from training to test: refused or warned of, with a picture of the pairs."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedlit.data.patients import keys
from fedlit.data.records import Records, listed

Duplicates = Literal["refuse", "allow"]
"""What happens if one picture is where it leaks: an error or a warning."""


def notes_of_copies(cache: Path, duplicates: Duplicates, names: Sequence[str], read: Sequence[Records]) -> list[str]:
    """Look for pictures that a source has under two patients, or that two sources have; return notes of pairs that are alike.

    Raises:
        ValueError: There are some, and they are refused.
    """
    from fedlit.data.pictures.duplicates import (  # with PyTorch, which takes seconds
        cached_pairs,
        draw_pairs,
        pairs_file,
    )

    one, other, apart = read[0], read[-1], None
    stores, images = (one.store, other.store), (one.names, other.names)
    files = [one.store.path.name, other.store.path.name]
    what = f"are in {names[-1]!r} too"
    leak = (
        "the same patients would be in the training of one site and in the test of another (for example, RSNA Pneumonia and SIIM "
        "Pneumothorax are taken from NIH ChestX-ray14)"
    )
    if len(names) == 1:
        apart = (keys(one.patients),) * 2
        files[1] = hashlib.sha256("\0".join(apart[0].tolist()).encode()).hexdigest()[:24]
        what = "are there under more than one patient"
        leak = "one person's pictures would be in training and test, or at two sites"
    pairs = cached_pairs(cache, *stores, tuple(files), apart)
    if not pairs:
        return []
    picture, notes = draw_pairs(pairs_file(cache, *names), pairs, stores, images), []
    same = [f"{images[0][pair.one]} and {images[1][pair.other]}" for pair in pairs if pair.same]
    if like := len(pairs) - len(same):
        of = " and ".join(map(repr, names))
        notes = [f"{like} pictures of {of} are alike, and may be one picture, cropped: look at {picture}"]
        warnings.warn(notes[0], stacklevel=5)
    if same:
        message = (
            f"{len(same)} pictures of {names[0]!r} {what}, the first are {listed(same, 2)}, perhaps compressed anew or resized "
            f"(look at {picture}): {leak}"
        )
        if duplicates == "refuse":
            raise ValueError(f"{message}. Leave one of them out, or set data.duplicates to allow.")
        warnings.warn(message, stacklevel=5)
    return notes
