"""What the training loop knows about tracking: a run, the metrics file of its directory, and a tracker."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class RunInfo:
    """One run, as a tracker is told of it.

    Args:
        directory: ``runs/<experiment>/<run>``; a tracker may keep its own small files there.
        experiment: Name of the experiment; its runs are compared with each other.
        name: Name of the run.
        params: What people compare between runs, flat: ``{"model.lr": 0.01}``.
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

        Args:
            metrics: Key to value; anything that ``float()`` takes.
            step: The round.

        Raises:
            ValueError: If a key holds a line break or a double quote.
        """
        step = int(step)
        fresh = {key: float(value) for key, value in metrics.items() if self._last(key) != step}
        if not fresh:
            return
        rows = "".join(f"{step},{_quoted(key)},{value!r}\n" for key, value in fresh.items())
        file = self._opened()
        file.write(rows.encode())
        file.flush()
        self._last_step.update(dict.fromkeys(fresh, step))

    def truncate(self, last_step: int) -> None:
        """Drop the rows of later steps and a torn last line, by an atomic replacement of the file.

        Called when a run resumes from a checkpoint, before a tracker starts and before the next `append`.

        Args:
            last_step: The last step that is kept.

        Raises:
            ValueError: If the file holds a line that is no row of metrics.
        """
        self.close()
        if not self.path.exists():
            return
        kept = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with kept.open("wb") as file:
                file.write(self.header.encode())
                for line, row in self._lines(None):
                    if row[0] <= last_step:
                        file.write(line)
                file.flush()
                os.fsync(file.fileno())
            os.replace(kept, self.path)
        finally:
            kept.unlink(missing_ok=True)

    def rows(self, end: int | None = None) -> Iterator[tuple[int, str, float]]:
        """Read the rows in the order in which they were written; a torn last line is left out.

        Args:
            end: Read no further than this many bytes, a value of `size`; by default the whole file.

        Yields:
            Step, key and value.

        Raises:
            ValueError: If the file holds a line that is no row of metrics.
        """
        for _, row in self._lines(end):
            yield row

    def size(self) -> int:
        """Bytes of the file so far, 0 where there is none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._last_step = {}

    def _last(self, key: str) -> int | None:
        self._opened()
        return self._last_step.get(key)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._last_step = {key: step for step, key, _ in self.rows()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            self._cut_torn_line(self._file)
            if self._file.tell() == 0:
                self._file.write(self.header.encode())
        return self._file

    def _cut_torn_line(self, file: BinaryIO) -> None:
        # A process killed inside a write leaves half a line; what is appended next would be glued to it.
        with self.path.open("rb") as whole:
            complete = sum(len(line) for line in whole if line.endswith(b"\n"))
        if complete < file.tell():
            file.truncate(complete)
            file.seek(0, os.SEEK_END)

    def _lines(self, end: int | None) -> Iterator[tuple[bytes, tuple[int, str, float]]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            position = 0
            for number, line in enumerate(file, start=1):
                position += len(line)
                if not line.endswith(b"\n") or (end is not None and position > end):
                    return
                if number > 1:
                    yield line, self._parsed(line, number)
                elif line.decode(errors="replace") != self.header:
                    raise self._malformed(line, number, self.header.strip())

    def _parsed(self, line: bytes, number: int) -> tuple[int, str, float]:
        try:
            step, _, rest = line.decode().rstrip("\n").partition(",")
            key, comma, value = rest.rpartition(",")
            if comma:
                return int(step), key.strip('"'), float(value)
        except ValueError:
            pass
        raise self._malformed(line, number, self.header.strip())

    def _malformed(self, line: bytes, number: int, expected: str) -> ValueError:
        found = line.decode(errors="replace").strip()
        return ValueError(
            f"{self.path}, line {number}: expected {expected!r}, found {found!r}. Correct or remove the "
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
        keeps_models: whether it wants the best model as a folder in MLflow's format, as an artifact.
    """

    keeps_models = False

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Called once before the first round.

        Args:
            run: The run.
            metrics: The metrics that the run has so far (none if it is new), already cut to the checkpoint.
        """

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Called after the same metrics went to the metrics file.

        Args:
            metrics: Key to value, NaN included.
            step: The round.
        """

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Called when a file of the run is worth keeping with it.

        Args:
            path: A file or a directory.
            folder: Where it goes among the artifacts of the run; the top by default.
        """

    def finish(self, status: RunStatus) -> None:
        """Called once after the last round, also when the run fails or is stopped.

        Args:
            status: How the run ended.
        """

    def summary(self) -> str | None:
        """One or two lines for the end of the run: where to look, and the command that opens it."""
        return None
