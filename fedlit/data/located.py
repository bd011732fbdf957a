"""Files as they are spelled on the disk, and which of them are there."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom", ".tif", ".tiff", ".bmp")
"""Suffixes that a name without one may have on the disk, in any case; of several the first is taken."""


class Folder:
    """The names in a folder, listed once."""

    def __init__(self, path: str) -> None:
        self.names = frozenset(os.listdir(path)) if os.path.isdir(path) else frozenset()
        self._by_suffix: dict[tuple[str, str], str] | None = None

    def spelled(self, name: str) -> str:
        """Return a name as it is on the disk, "" where it is not there.

        The case of its suffix may be another, and a name without a suffix may have one.
        """
        if name in self.names:
            return name
        if self._by_suffix is None:
            split = ((os.path.splitext(each), each) for each in sorted(self.names, reverse=True))
            self._by_suffix = {(stem, suffix.lower()): each for (stem, suffix), each in split}
        stem, suffix = os.path.splitext(name)
        if found := self._by_suffix.get((stem, suffix.lower())):
            return found
        return next((found for each in SUFFIXES if (found := self._by_suffix.get((name, each)))), "")


def located(files: Sequence[str | Path]) -> tuple[list[str], np.ndarray]:
    """Return each path as it is spelled on the disk, and which are there, [N] bool; each folder is listed once."""
    folders: dict[str, Folder] = {}
    spelled, there = list(map(os.fspath, files)), np.zeros(len(files), dtype=bool)
    for row, file in enumerate(spelled):
        parent, _, name = file.rpartition(os.sep)
        folder = folders.get(parent)
        if folder is None:
            folder = folders[parent] = Folder(parent)
        found = folder.spelled(name)
        there[row] = bool(found)
        if found and found != name:
            spelled[row] = os.path.join(parent, found)
    return spelled, there
