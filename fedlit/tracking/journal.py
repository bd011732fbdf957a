"""Notes of a run on a cluster for MLflow, kept in its directory until one process sends those of all runs.

Many jobs that write to one SQLite database on a shared disk damage it, or wait for each other.
"""

import json
import os
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedlit.tracking.base import DataInfo, MetricsFile, RunInfo, RunStatus

LATER = "FEDLIT_MLFLOW_LATER"
"""Environment variable by which a job makes its run note what MLflow gets later."""

FILE = "mlflow_later.jsonl"
"""Name of the file in a run's directory."""


class Journal:
    """The notes of a run. It has the methods of a :class:`~fedlit.tracking.sender.Sender`, and needs no store."""

    terminated = True

    def __init__(self, run: RunInfo, metrics: MetricsFile, tags: Mapping[str, str]) -> None:
        self.run, self.metrics, self.closing = replace(run, tags=dict(tags)), metrics, threading.Event()

    def start(self) -> None:
        """Note the description of the run."""
        self._note(run=asdict(self.run))

    def note_time(self) -> None:
        """Note that the last rows of the metrics were written now."""
        self._note()

    def add_file(self, path: Path, folder: str) -> None:
        """Note a file or folder, by its path in the run's directory."""
        self._note(file=(os.path.relpath(path, self.run.directory), folder))

    def close(self, status: RunStatus | None, seconds: float) -> None:
        """Note the end of the run."""
        self._note(status=status)
        self.closing.set()

    def join(self, timeout: float) -> None:
        """Do nothing: everything is written."""

    def unsent(self) -> int:
        """Return 0: nothing waits for a store."""
        return 0

    def _note(self, **what: Any) -> None:
        note = what | {"size": self.metrics.size(), "ms": int(time.time() * 1000)}
        with (self.run.directory / FILE).open("a") as file:  # in a line of its own, even if a node died while it wrote
            file.write("\n" + json.dumps(note, default=str))


@dataclass
class Notes:
    """The notes of a run that has finished."""

    run: RunInfo
    times: list[tuple[int, int]]  # Positions in ``metrics.csv``, and times in milliseconds of the rows before them.
    files: dict[tuple[Path, str], None]  # Files and their folders in MLflow, in order.
    began: int
    ended: int

    @classmethod
    def read(cls, directory: Path) -> "Notes | None":
        """Read the notes in a run's directory; None if there are none, or the run has not finished.

        The notes of another person's run may name any file of this machine: only those of the run are taken, and a
        warning names the others.
        """
        file, lines = directory / FILE, []
        for line in file.read_text().splitlines() if file.exists() else ():
            with suppress(ValueError):
                lines.append(json.loads(line))
        if not lines or lines[-1].get("status") != "FINISHED":
            return None
        run = [line["run"] for line in lines if "run" in line][-1]
        run |= {"directory": directory, "resumed": True, "data": DataInfo(**run["data"]) if run["data"] else None}
        run |= {"phase_of": Path(run["phase_of"]) if run["phase_of"] else None}
        times: list[tuple[int, int]] = []
        for line in lines:
            while times and times[-1][0] >= line["size"]:  # a resumed run has removed the rows after its checkpoint
                times.pop()
            times.append((line["size"], line["ms"]))
        files, home = dict[tuple[Path, str], None](), directory.resolve()
        for name, folder in (line["file"] for line in lines if "file" in line):
            path = directory / name
            if all(each.resolve().is_relative_to(home) for each in (path, *path.rglob("*"))):  # links lead elsewhere
                files[path, folder] = None
            else:
                warnings.warn(f"{file}: expected files below {directory}, found {path}; it is not sent", stacklevel=2)
        return cls(RunInfo(**run), times, files, lines[0]["ms"], lines[-1]["ms"])


def is_later() -> bool:
    """Return whether this process notes what MLflow gets."""
    return bool(os.environ.get(LATER))
