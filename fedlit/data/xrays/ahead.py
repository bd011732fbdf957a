"""Reading of image headers by other processes while this one still reads label files."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.synchronize import Event

from fedlit.core.system.processes import cores, end_with_parent, may_have_children, starting
from fedlit.data.xrays.pictures import IMAGES, Picture, inspect_image

CHUNK = 256
"""Number of headers that a process reads before it checks whether to stop."""

WORTH = 2000
"""Number of images from which on starting processes pays off."""


class Ahead:
    """Processes that read the headers of all images below folders until the needed images are known."""

    def __init__(self, roots: Sequence[str]) -> None:
        # No fork, which would be unsafe if this process has threads.
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
        """Stop reading everything and return the results by path; they are empty if a process was killed."""
        self._enough.set()
        try:
            return {file: picture for share in self._shares for file, picture in share.result().items()}
        except BrokenProcessPool:
            return {}

    def inspect(self, chunks: Sequence[Sequence[str]]) -> Iterator[list[Picture]]:
        """Read the headers of files and yield those of each chunk in turn; if a process is killed, read them here."""
        done = 0
        try:
            for done, pictures in enumerate(self._pool.map(headers, chunks), 1):  # noqa: B007
                yield pictures
        except BrokenProcessPool:
            yield from map(headers, chunks[done:])


def headers(files: Sequence[str]) -> list[Picture]:
    """Read the headers of some files; equal headers are one object, which is cheap to send."""
    same: dict[Picture, Picture] = {}
    return [same.setdefault(picture, picture) for picture in map(inspect_image, files)]


_enough: Event | None = None  # of a process that reads ahead


def _begin(enough: Event) -> None:
    global _enough
    _enough = enough
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C, and then ends this process
    end_with_parent()


def is_worth_it(roots: Sequence[str]) -> bool:
    """Return True if other processes may help and there are many images below the folders."""
    return cores() > 1 and may_have_children() and sum(1 for _ in islice(_images(roots), WORTH)) == WORTH


def _images(roots: Sequence[str]) -> Iterator[str]:
    names = (os.path.join(folder, name) for root in roots for folder, _, inside in os.walk(root) for name in inside)
    return (name for name in names if name.lower().endswith(IMAGES))


def _below(roots: Sequence[str], share: int, shares: int) -> dict[str, Picture]:
    """Read the headers of one share of the images below folders until the needed images are known."""
    pictures: dict[str, Picture] = {}
    files, number = _images(roots), 0
    while not _enough.is_set() and (chunk := list(islice(files, CHUNK))):
        if number % shares == share:
            pictures |= zip(chunk, headers(chunk), strict=True)
        number += 1
    return pictures
