"""What the training loop knows about tracking: a run, the metrics file of its directory, and a tracker."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from fedlit.core.system.files import whole

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class RunInfo:
    """One run, as a tracker gets to know it.

    Args:
        directory: ``runs/<experiment>/<run>``; a tracker may keep its own small files there.
        experiment: Name of the experiment; its runs are compared with each other.
        name: Name of the run.
        params: What people compare between runs, flat: ``{"lr": 0.01}``.
        tags: What the run is: aggregators, engine, partition, git revision.
        resumed: Whether the run continues an earlier one in the same directory.
    """

    directory: Path
    experiment: str
    name: str
    params: Mapping[str, str | int | float | bool]
    tags: Mapping[str, str]
    resumed: bool


class MetricsFile:
    """``metrics.csv`` of a run directory: every metric of the run, one row each, ``step,key,value``.

    This file is the truth: trackers are synced from it. Reading a value gives the float64 that was written,
    NaN as ``nan``. A key that was last written at the same step is not written again, so that evaluating a
    finished run a second time leaves one row per key and step.

    Args:
        path: The file. It is created at the first `append`.
    """

    header = "step,key,value\n"

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self._last_step: dict[str, int] = {}

    def append(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row per metric, in one write that is flushed to the operating system.

        Raises:
            ValueError: If a key holds a line break or a double quote.
        """
        if not metrics:
            return
        step, file = int(step), self._opened()
        fresh = {key: float(value) for key, value in metrics.items() if self._last_step.get(key) != step}
        if not fresh:
            return
        rows = "".join(f"{step},{_quoted(key)},{value!r}\n" for key, value in fresh.items())
        file.write(rows.encode())
        file.flush()
        self._last_step.update(dict.fromkeys(fresh, step))

    def truncate(self, last_step: int) -> None:
        """Drop the rows after step ``last_step`` and a torn last line, by an atomic replacement of the file.

        Called when a run resumes from a checkpoint, before a tracker starts and before the next `append`.

        Raises:
            ValueError: If the file holds a line that is no row of metrics.
        """
        self.close()
        if not self.path.exists():
            return
        with whole(self.path, durable=True) as draft, draft.open("wb") as file:
            file.write(self.header.encode())
            for end, line in self._lines(0):
                if self._parsed(line, end)[0] <= last_step:
                    file.write(line)

    def rows(self) -> Iterator[tuple[int, str, float]]:
        """Read the rows, step, key and value, in the order in which they were written; as `since` does."""
        for _, row in self.since(0):
            yield row

    def since(self, position: int) -> Iterator[tuple[int, tuple[int, str, float]]]:
        """Read the rows that come after a position; a torn last line is left out.

        Args:
            position: 0, a value of `size`, or one that this method has yielded.

        Yields:
            The position at which a row ends, and the row.

        Raises:
            ValueError: If the file holds a line that is no row of metrics.
        """
        for end, line in self._lines(position):
            yield end, self._parsed(line, end)

    def count_since(self, position: int) -> int:
        """Count the complete rows that come after a position, whatever is in them."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            file.seek(max(position, len(self.header)))
            return sum(line.endswith(b"\n") for line in file)

    def size(self) -> int:
        """Count the bytes of the file so far, 0 where there is none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
        self._file, self._last_step = None, {}

    def _opened(self) -> BinaryIO:
        if self._file is None:
            complete = 0
            for end, (step, key, _) in self.since(0):
                complete, self._last_step[key] = end, step
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            # A process killed inside a write leaves half a line; what is appended next would be glued to it.
            self._file.truncate(complete)
            if complete == 0:
                self._file.write(self.header.encode())
        return self._file

    def _lines(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Read the complete lines of rows after a position, each after the position at which it ends."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                position += len(line)
                if position > len(line):
                    yield position, line
                elif line.decode(errors="replace") != self.header:
                    raise self._malformed(line, position)

    def _parsed(self, line: bytes, end: int) -> tuple[int, str, float]:
        try:
            step, _, rest = line.decode().rstrip("\n").partition(",")
            key, comma, value = rest.rpartition(",")
            if comma:
                return int(step), key.strip('"'), float(value)
        except ValueError:
            pass
        raise self._malformed(line, end)

    def _malformed(self, line: bytes, end: int) -> ValueError:
        number = self.path.read_bytes().count(b"\n", 0, end)
        text = line.decode(errors="replace").strip()
        return ValueError(
            f"{self.path}, line {number}: expected {self.header.strip()!r}, found {text!r}. Correct or remove the "
            "line, or move the file away: the metrics of the rounds to come then go to a new one."
        )


def _quoted(key: str) -> str:
    if "\n" in key or "\r" in key or '"' in key:
        raise ValueError(f"The name of a metric may hold no line break and no double quote, found {key!r}. Rename it.")
    return f'"{key}"' if "," in key else key


class Tracker:
    """Neutral tracker: every method does nothing. A subclass overrides what it needs and is named in YAML.

    A tracker is used in the main process alone. Its methods are called between rounds: they return at once
    and raise nothing, so that a tracking server that is slow or down never stops a run.

    Attributes:
        keeps_models: Whether it wants the best model as a folder in MLflow's format, as an artifact.
    """

    keeps_models = False

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Called once before the first round, with the metrics of a resumed run, already cut to its checkpoint."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Called after the same metrics of round ``step``, NaN included, went to the metrics file."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Called when a file or directory is worth keeping with the run, in a folder of its artifacts or at the top."""

    def finish(self, status: RunStatus) -> None:
        """Called once after the last round, also when the run fails or is stopped: ``status`` tells."""

    def summary(self) -> str | None:
        """Say in one or two lines where to look at the end of the run, and the command that opens it."""
        return None
