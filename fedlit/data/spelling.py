"""Files as they are spelled on the disk, and which of them are there."""

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom", ".tif", ".tiff", ".bmp")
"""Suffixes that a name without one may have on the disk, in any case; of several the first is taken."""


def plain(name: str) -> str:
    """Return a name in the usual form of Unicode with its suffix in lower case."""
    stem, suffix = os.path.splitext(unicodedata.normalize("NFC", name))
    return stem + suffix.lower()


class Folder:
    """The names in a folder, listed once."""

    def __init__(self, path: str) -> None:
        self.names = frozenset(os.listdir(path)) if os.path.isdir(path) else frozenset()
        self._plain: dict[str, str] | None = None

    def spelled(self, name: str) -> str:
        """Return a name as it is on the disk, "" where it is not there.

        The case of its suffix and the form of Unicode may be others, and a name without a suffix may have one.
        """
        if name in self.names:
            return name
        if self._plain is None:
            self._plain = {plain(each): each for each in sorted(self.names, reverse=True)}
        spellings = (plain(name), *(unicodedata.normalize("NFC", name) + each for each in SUFFIXES))
        return next((self._plain[each] for each in spellings if each in self._plain), "")


def located(files: Sequence[str | Path]) -> tuple[list[str], np.ndarray]:
    """Return each path as it is spelled on the disk, and which are there, [N] bool; each folder is listed once."""
    folders: dict[str, Folder] = {}
    spelled, there = list(map(os.fspath, files)), np.zeros(len(files), dtype=bool)
    for row, file in enumerate(spelled):
        parent, _, name = file.rpartition(os.sep)
        folder = folders.get(parent)
        if folder is None:
            folder = folders[parent] = Folder(parent or os.curdir)
        found = folder.spelled(name)
        there[row] = bool(found)
        if found and found != name:
            spelled[row] = os.path.join(parent, found)
    return spelled, there
