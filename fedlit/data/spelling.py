"""Spelling of file names on the disk."""

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom", ".tif", ".tiff", ".bmp")
"""Suffixes that may be missing in a name, in any case; the first that exists is taken."""


def plain(name: str) -> str:
    """Return a name in Unicode's composed form (NFC) with its suffix in lower case."""
    stem, suffix = os.path.splitext(unicodedata.normalize("NFC", name))
    return stem + suffix.lower()


def stem_of(path: str) -> str:
    """Return a path without its suffix."""
    return os.path.splitext(path)[0]


class FolderListing:
    """Names of the files in a folder, listed once."""

    def __init__(self, path: str) -> None:
        self.names = frozenset(os.listdir(path)) if os.path.isdir(path) else frozenset()
        self._plain: dict[str, str] | None = None

    def spelled(self, name: str) -> str:
        """Return a name as it is spelled on the disk, or "" if there is no such file.

        The spellings may differ in the case of the suffix and in the form of Unicode, and the name may lack its suffix.
        """
        if name in self.names:
            return name
        if self._plain is None:
            self._plain = {plain(each): each for each in sorted(self.names, reverse=True)}
        spellings = (plain(name), *(unicodedata.normalize("NFC", name) + each for each in SUFFIXES))
        return next((self._plain[each] for each in spellings if each in self._plain), "")


def located(files: Sequence[str | Path]) -> tuple[list[str], np.ndarray]:
    """Return each path as it is spelled on the disk, and a mask of existing files, [N] bool."""
    folders: dict[str, FolderListing] = {}
    spelled, there = [os.fspath(file) for file in files], np.zeros(len(files), dtype=bool)
    for row, file in enumerate(spelled):
        parent, _, name = file.rpartition(os.sep)
        folder = folders.get(parent)
        if folder is None:
            folder = folders[parent] = FolderListing(parent or os.curdir)
        on_disk = folder.spelled(name)
        there[row] = bool(on_disk)
        if on_disk and on_disk != name:
            spelled[row] = os.path.join(parent, on_disk)
    return spelled, there
