"""Image decoding in threads, or in processes if threads block each other."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedlit.core.errors import ConfigError
from fedlit.core.system.processes import context, cores, end_with_parent, starting
from fedlit.data.pictures import pixels
from fedlit.data.pictures.hashes import perceptual_hashes

DONE = 1
CHUNK = 8
"""Number of files that a thread or process decodes before it replies."""


@dataclass(frozen=True)
class DecodeSettings:
    """Image files and the options of ``read_image`` for them."""

    files: Sequence[str]
    image_size: int
    channels: int
    depth: int
    resize: pixels.Resize = "squeeze"


class Target:
    """The files that a decoder writes to.

    Args:
        partial: The unfinished store.
        rows: The file with the state of its rows.
    """

    def __init__(self, partial: Path, rows: Path) -> None:
        self.pictures = np.load(partial, mmap_mode="r+")
        self.rows = np.load(rows, mmap_mode="r+")

    def take(self, row: int, file: str, image_size: int, channels: int, depth: int, resize: pixels.Resize) -> str:
        """Decode a file into its row, and return the reason if it cannot be decoded, or "".

        Raises:
            ConfigError: A package is missing, so the file is not to blame.
        """
        try:
            picture = pixels.read_image(Path(file), image_size, channels, depth, resize)
        except ConfigError:
            raise
        except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
            return str(error) or type(error).__name__
        self.pictures[row] = picture
        self.rows["hash"][row] = perceptual_hashes(picture[None])[0]
        self.rows["state"][row] = DONE
        return ""


class Decoders:
    """Threads and processes that fill a store.

    Args:
        job: The files and their options.
        partial: The unfinished store.
        rows: The file with the state of its rows.
        shape: The shape of the store.
    """

    WORTH = 30
    """Seconds of work from which on starting processes pays off."""

    def __init__(self, job: DecodeSettings, partial: Path, rows: Path, shape: tuple[int, ...]) -> None:
        self.job, self._files, self._target = job, (partial, rows), Target(partial, rows)
        self._pool: Executor | None = None

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def threads(self, rows: np.ndarray) -> Iterator[tuple[int, str]]:
        """Decode rows in threads; yield each with the reason if it cannot be decoded, or ""."""
        job = self.job
        self._close()
        self._pool = ThreadPoolExecutor(cores())

        def some(chunk: list[int]) -> list[tuple[int, str]]:
            take = self._target.take
            return [
                (row, take(row, job.files[row], job.image_size, job.channels, job.depth, job.resize)) for row in chunk
            ]

        chunks = [rows[start : start + CHUNK].tolist() for start in range(0, len(rows), CHUNK)]
        for answers in self._pool.map(some, chunks):
            yield from answers

    def processes(self, rows: np.ndarray) -> Iterator[tuple[int, str]]:
        """Decode rows in processes, and yield the same as ``threads``."""
        job = self.job
        self._close()
        with starting():
            self._pool = ProcessPoolExecutor(cores(), context(), _begin, self._files)
            chunks = [
                [
                    (row, job.files[row], job.image_size, job.channels, job.depth, job.resize)
                    for row in rows[start : start + CHUNK].tolist()
                ]
                for start in range(0, len(rows), CHUNK)
            ]
            answered = self._pool.map(_take, chunks)
        for answers in answered:
            yield from answers

    def _close(self) -> None:
        # Not as a context manager, which would decode all other files after Ctrl-C.
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


_target: Target | None = None  # of a process that decodes


def _begin(partial: Path, rows: Path) -> None:
    global _target
    _target = Target(partial, rows)
    end_with_parent()


def _take(chunk: list[tuple[int, str, int, int, int, pixels.Resize]]) -> list[tuple[int, str]]:
    return [(each[0], _target.take(*each)) for each in chunk]


class Rate(ProgressColumn):
    """Column of a progress bar with images per second."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


@contextmanager
def bar(total: int) -> Iterator[Callable[[], None]]:
    """Context manager that shows a progress bar on the terminal and yields a function to call after each image."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("decoding", total=total)
        yield lambda: progress.advance(task)


def duration(seconds: float) -> str:
    """Return a time as text, such as ``3 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
