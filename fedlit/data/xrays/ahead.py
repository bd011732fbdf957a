"""Headers of image files, read by other processes while this one still reads label files."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.synchronize import Event

from fedlit.core.system.processes import cores, end_with_parent, starting
from fedlit.data.xrays.pictures import IMAGES, Picture, look_at

CHUNK = 256
"""Headers that a process reads before it asks whether it shall go on."""


WORTH = 2000
"""Images from which on it is worth to start processes."""


class Ahead:
    """Processes that read the headers of all pictures below folders until they are told which of them are meant.

    Args:
        roots: The folders.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        # No fork: it would be unsafe where this process has threads.
        spawning = multiprocessing.get_context("spawn")
        self._enough, shares = spawning.Event(), cores()
        self._pool = ProcessPoolExecutor(shares, spawning, _begin, (self._enough,))
        with starting():
            self._shares = [self._pool.submit(_below, list(roots), each, shares) for each in range(shares)]

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *error: object) -> None:
        self._enough.set()
        self._pool.shutdown(cancel_futures=True)

    def so_far(self) -> dict[str, Picture]:
        """End the look at everything, and return what was seen, by path; nothing where a process was killed."""
        self._enough.set()
        try:
            return {file: picture for share in self._shares for file, picture in share.result().items()}
        except BrokenProcessPool:
            return {}

    def look_at(self, chunks: Sequence[Sequence[str]]) -> Iterator[list[Picture]]:
        """Read the headers of files, and yield those of each chunk in turn; where a process was killed, here."""
        done = 0
        try:
            for done, found in enumerate(self._pool.map(headers, chunks), 1):  # noqa: B007
                yield found
        except BrokenProcessPool:
            yield from map(headers, chunks[done:])


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


def is_worth_it(roots: Sequence[str]) -> bool:
    """Return whether there are cores for it, and many images below some folders."""
    return cores() > 1 and sum(1 for _ in islice(_images(roots), WORTH)) == WORTH


def _images(roots: Sequence[str]) -> Iterator[str]:
    names = (os.path.join(folder, name) for root in roots for folder, _, inside in os.walk(root) for name in inside)
    return (name for name in names if name.lower().endswith(IMAGES))


def _below(roots: Sequence[str], share: int, shares: int) -> dict[str, Picture]:
    """Look at one share of the pictures below folders, as long as there is need."""
    found: dict[str, Picture] = {}
    files, number = _images(roots), 0
    while not _enough.is_set() and (chunk := list(islice(files, CHUNK))):
        if number % shares == share:
            found |= zip(chunk, headers(chunk), strict=True)
        number += 1
    return found
