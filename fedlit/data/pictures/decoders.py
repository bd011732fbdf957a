"""Image decoding in threads, or in processes if threads block each other."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedlit.core.errors import ConfigError
from fedlit.core.system.processes import context, cores, end_with_parent, may_have_children, starting
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
    """The unfinished store that a decoder writes to, and the file with the state of its rows."""

    def __init__(self, partial: Path, rows: Path, options: tuple) -> None:
        self.pictures = np.load(partial, mmap_mode="r+")
        self.rows = np.load(rows, mmap_mode="r+")
        self.options = options

    def take(self, chunk: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Decode files into their rows; return each row with the reason if its file cannot be decoded, or ""."""
        return [(row, self._decode(row, file)) for row, file in chunk]

    def _decode(self, row: int, file: str) -> str:
        try:
            picture = pixels.read_image(Path(file), *self.options)
        except ConfigError:  # a package is missing, so the file is not to blame
            raise
        except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
            return str(error) or type(error).__name__
        self.pictures[row] = picture
        self.rows["hash"][row] = perceptual_hashes(picture[None])[0]
        self.rows["state"][row] = DONE
        return ""


def decoded(
    job: DecodeSettings, partial: Path, states: Path, rows: np.ndarray, processes: bool = False
) -> Iterator[tuple[int, str]]:
    """Decode rows in threads, or in processes; yield each with the reason if it cannot be decoded, or "".

    Closing the generator drops the rows that are left.

    Args:
        job: The files and options.
        partial: The unfinished store.
        states: The file with the state of its rows.
        rows: The rows to decode.
        processes: Decode in processes, which pays off if threads block each other.
    """
    target = (partial, states, (job.image_size, job.channels, job.depth, job.resize))
    parts = [rows[start : start + CHUNK].tolist() for start in range(0, len(rows), CHUNK)]
    processes = processes and may_have_children()
    chunks = [[(row, job.files[row]) for row in part] for part in parts]
    pool = ProcessPoolExecutor(cores(), context(), _begin, target) if processes else ThreadPoolExecutor(cores())
    try:
        with starting() if processes else nullcontext():
            answers = pool.map(_take if processes else Target(*target).take, chunks)
        yield from chain.from_iterable(answers)
    finally:
        # Not as a context manager, which would decode all other files after Ctrl-C.
        pool.shutdown(cancel_futures=True)


_target: Target | None = None  # of a process that decodes


def _begin(*target: object) -> None:
    global _target
    _target = Target(*target)
    end_with_parent()


def _take(chunk: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return _target.take(chunk)


class Rate(ProgressColumn):
    """Column of a progress bar with images per second."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def with_bar(decoded: Iterator[tuple[int, str]], total: int) -> Iterator[tuple[int, str]]:
    """Yield decoded images, and show a progress bar on the terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(decoded, total, description="decoding")


def duration(seconds: float) -> str:
    """Return a time as text, such as ``3 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
