"""The interface between training and tracking: a run, the metrics file of its directory, and a tracker."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from fedlit.core.errors import DataError
from fedlit.core.system.files import whole

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class DataInfo:
    """Description of the data of a run.

    Args:
        name: Name of the data's class.
        source: Its path, for example ``fedlit.data.phantom.phantom.PhantomCXR``.
        digest: Digest of which image is at which client and in which split.
        counts: Number of clients, classes and training images, and training images by client.
    """

    name: str
    source: str
    digest: str
    counts: Mapping[str, int]


@dataclass(frozen=True)
class RunInfo:
    """Description of a run for a tracker.

    Args:
        directory: ``runs/<experiment>/<run>``; a tracker may store small files there.
        experiment: Name of the experiment, whose runs are compared with each other.
        name: Name of the run.
        params: Parameters to compare between runs, flat: ``{"lr": 0.01}``.
        tags: Properties of the run: aggregators, engine, partition, git revision.
        resumed: Whether the run continues an earlier one in the same directory.
        data: The data, if they are known.
        phase_of: Directory of the run of which this run is a phase.
    """

    directory: Path
    experiment: str
    name: str
    params: Mapping[str, str | int | float | bool]
    tags: Mapping[str, str]
    resumed: bool
    data: DataInfo | None = None
    phase_of: Path | None = None


@dataclass(frozen=True)
class RunGroup:
    """Runs that a tracker shows together, with their means over seeds.

    Args:
        name: Name of the group: a method, or a method with the values of a grid.
        runs: Run directories of all runs.
        averaged: Run directories, by seed, of the finished runs that differ only in their seed.
    """

    name: str
    runs: Sequence[Path]
    averaged: Mapping[int, Path]


class MetricsFile:
    """``metrics.csv`` of a run directory: one row ``step,key,value`` per metric and step.

    Trackers are synchronised from this file. Values are read back as the float64 that was written, with NaN as ``nan``.
    A key that was last written at the same step is not written again, so evaluating a finished run again adds no rows.
    """

    header = "step,key,value\n"

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self._last_step: dict[str, int] = {}

    def append(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row per metric, in a single write that is flushed to the operating system.

        Raises:
            ValueError: A key contains a line break or a double quote.
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
        """Remove rows after step ``last_step`` and an incomplete last line, by atomically replacing the file.

        Called when a run resumes from a checkpoint, before a tracker starts and before the next `append`.

        Raises:
            ValueError: The file contains an invalid line.
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
        """Yield all rows as (step, key, value), in the order of the file."""
        for _, row in self.since(0):
            yield row

    def since(self, position: int) -> Iterator[tuple[int, tuple[int, str, float]]]:
        """Yield the rows after a position, each with the position at its end, without an incomplete last line.

        A position is 0, a value of `size`, or one that this method has yielded.

        Raises:
            ValueError: The file contains an invalid line.
        """
        for end, line in self._lines(position):
            yield end, self._parsed(line, end)

    def count_since(self, position: int) -> int:
        """Count the complete lines after a position, without parsing them."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            file.seek(max(position, len(self.header)))
            return sum(line.endswith(b"\n") for line in file)

    def size(self) -> int:
        """Return the size of the file in bytes, or 0 if it does not exist."""
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
            # A process that was killed during a write leaves an incomplete line, which must not be appended to.
            self._file.truncate(complete)
            if complete == 0:
                self._file.write(self.header.encode())
        return self._file

    def _lines(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Yield the complete lines after a position, each with the position at its end."""
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

    def _malformed(self, line: bytes, end: int) -> DataError:
        number = self.path.read_bytes().count(b"\n", 0, end)
        text = line.decode(errors="replace").strip()
        return DataError(
            f"{self.path}, line {number}: expected {self.header.strip()!r}, found {text!r}; correct or remove the "
            "line, or move the file away: later metrics are then written to a new file"
        )


def _quoted(key: str) -> str:
    if "\n" in key or "\r" in key or '"' in key:
        raise DataError(f"metric: expected a name without line breaks and double quotes, found {key!r}; rename it")
    return f'"{key}"' if "," in key else key


class Tracker:
    """Base class of trackers, whose methods do nothing; subclasses are named in YAML.

    A tracker is used only in the main process. Its methods are called between rounds. They must return immediately and
    raise no errors, so that a slow or unavailable server never stops a run.

    Attributes:
        keeps_models: Whether the best model is logged as an artifact, in MLflow's format.
        imports: Modules that a run imports for the tracker, which a process that starts many runs imports only once.
    """

    keeps_models = False
    imports: tuple[str, ...] = ()

    def of_phase(self) -> "Tracker":
        """Return the tracker of a phase, which is a run of its own; by default it logs nothing."""
        return Tracker()

    def check(self, experiment: str, directory: Path | None) -> None:
        """Called before data and models are made, with the directory of a resumed run.

        Raises:
            ConfigError: No run of the experiment can be logged.
        """

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Called once before the first round; metrics of a resumed run are already truncated to its checkpoint."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Called after metrics of round ``step``, including NaN, have been written to the metrics file."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Called to store a file or directory with the run, in ``folder`` or at the top of its artifacts."""

    def finish(self, status: RunStatus) -> None:
        """Called once after the last round, with the status of a finished, failed or stopped run."""

    def send_notes(self, directory: Path) -> bool:
        """Send what a finished run on a cluster has noted in its directory; return whether all was taken."""
        return False

    def log_groups(self, groups: Sequence[RunGroup]) -> None:
        """Called in the process that has started several runs, after they have ended."""

    def summary(self) -> str | None:
        """Return one or two lines with the location of the results and the command that opens them, or None."""
        return None
