"""Headers of image files, read by other processes while this one still imports PyTorch and reads label files."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path

from fedlit.core.processes import cores, end_with_parent, without_main
from fedlit.data.xrays.pictures import IMAGES, Picture, look_at

CHUNK = 256
"""Headers that a process reads before it asks whether it shall go on."""


class Ahead:
    """Processes that read the headers of all pictures below folders until they are told which of them are meant.

    Args:
        roots: The folders.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        # No fork: it would be unsafe where this process has threads.
        spawning = multiprocessing.get_context("spawn")
        self._enough, shares = spawning.Event(), max(1, cores() - 1)  # this process needs a core itself
        self._pool = ProcessPoolExecutor(shares, spawning, _begin, (self._enough,))
        with without_main():
            self._shares = [self._pool.submit(_below, list(map(str, roots)), each, shares) for each in range(shares)]

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *error: object) -> None:
        self._enough.set()
        self._pool.shutdown(cancel_futures=True)

    def so_far(self) -> dict[str, Picture]:
        """End the look at everything, and return what was seen, by path."""
        self._enough.set()
        return {file: picture for share in self._shares for file, picture in share.result().items()}

    def look_at(self, chunks: Sequence[Sequence[str]]) -> Iterator[list[Picture]]:
        """Read the headers of files, and yield those of each chunk in turn."""
        return self._pool.map(headers, chunks)


def headers(files: Sequence[str]) -> list[Picture]:
    """Read the headers of some files; equal ones are one object, which costs nothing to pass on."""
    same: dict[Picture, Picture] = {}
    return [same.setdefault(picture, picture) for picture in map(look_at, files)]


_enough: Event | None = None  # of a process that looks ahead


def _begin(enough: Event) -> None:
    global _enough
    _enough = enough
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's to handle, which then ends this
    end_with_parent()


def _below(roots: Sequence[str], share: int, shares: int) -> dict[str, Picture]:
    """Look at one share of the pictures below folders, as long as there is need."""
    found: dict[str, Picture] = {}
    names = (os.path.join(folder, name) for root in roots for folder, _, inside in os.walk(root) for name in inside)
    files = (name for name in names if name.lower().endswith(IMAGES))
    number = 0
    while not _enough.is_set() and (chunk := list(islice(files, CHUNK))):
        if number % shares == share:
            found |= zip(chunk, headers(chunk), strict=True)
        number += 1
    return found
