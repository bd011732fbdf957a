"""Copies of pictures where they would leak from training to test: refused or warned of, with a picture of the pairs."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from fedlit.data.patients import keys
from fedlit.data.records import Records, listed

if TYPE_CHECKING:
    from fedlit.data.near import Pair, Store

Duplicates = Literal["refuse", "allow"]
"""What happens if one picture is where it leaks: an error or a warning."""


@dataclass(frozen=True)
class Copies:
    """Where copies are looked for.

    Attributes:
        cache: The cache folder.
        duplicates: What happens if there are some.
    """

    cache: Path
    duplicates: Duplicates = "refuse"

    def __post_init__(self) -> None:
        if self.duplicates not in get_args(Duplicates):
            raise ValueError(f"data.duplicates: expected refuse or allow, found {self.duplicates!r}")

    def within(self, name: str, records: Records) -> list[str]:
        """Look for pictures that one source has under two patients, and return notes of pairs that are merely alike.

        Raises:
            ValueError: There are some, and they are refused.
        """
        from fedlit.data.near import cached_pairs  # with PyTorch, which takes seconds

        people = keys(records.patients)
        apart = hashlib.sha256("\0".join(people.tolist()).encode()).hexdigest()[:24]
        stores = records.store, records.store
        pairs = cached_pairs(self.cache, *stores, (records.store.path.name, apart), (people, people))
        what = f"of {name!r} are there under more than one patient"
        leak = "one person's pictures would be in training and test, or at two sites"
        return self._found(pairs, stores, (records.names, records.names), (name,), what, leak)

    def between(self, names: tuple[str, str], both: tuple[Records, Records]) -> list[str]:
        """Look for pictures that two sources have, and return notes of pairs that are merely alike.

        Raises:
            ValueError: There are some, and they are refused.
        """
        from fedlit.data.near import cached_pairs

        stores = both[0].store, both[1].store
        pairs = cached_pairs(self.cache, *stores, (stores[0].path.name, stores[1].path.name))
        leak = (
            "the same patients would be in the training of one site and in the test of another (for example, RSNA Pneumonia "
            "and SIIM Pneumothorax are taken from NIH ChestX-ray14)"
        )
        images = both[0].names, both[1].names
        return self._found(pairs, stores, images, names, f"of {names[0]!r} are in {names[1]!r} too", leak)

    def _found(
        self,
        pairs: "Sequence[Pair]",
        stores: "tuple[Store, Store]",
        images: tuple[np.ndarray, np.ndarray],
        names: Sequence[str],
        what: str,
        leak: str,
    ) -> list[str]:
        from fedlit.data.near import draw_pairs, pairs_file

        if not pairs:
            return []
        picture, notes = draw_pairs(pairs_file(self.cache, *names), pairs, stores, images), []
        same = [f"{images[0][pair.one]} and {images[1][pair.other]}" for pair in pairs if pair.same]
        if like := len(pairs) - len(same):
            of = " and ".join(map(repr, names))
            notes = [f"{like} pictures of {of} are alike, and may be one picture, cropped: look at {picture}"]
            warnings.warn(notes[0], stacklevel=5)
        if same:
            message = (
                f"{len(same)} pictures {what}, the first are {listed(same, 2)}, perhaps compressed anew or resized (look at "
                f"{picture}): {leak}"
            )
            if self.duplicates == "refuse":
                raise ValueError(f"{message}. Leave one of them out, or set data.duplicates to allow.")
            warnings.warn(message, stacklevel=5)
        return notes
