"""Any logger of Lightning as a tracker, and several trackers as one."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from lightning.pytorch.loggers import Logger

from fedlit.core.system.files import whole
from fedlit.tracking.base import MetricsFile, RunInfo, RunStatus, Tracker
from fedlit.tracking.mlflow import MLflowTracker
from fedlit.tracking.names import shown

logger = logging.getLogger(__name__)

Chosen = Tracker | Logger | list[Tracker | Logger] | bool
"""What the key ``logger`` takes: true is MLflow, false is the run directory alone."""

NOTE = "loggers.json"
"""Lies in a run's directory: the last step of each key that each logger has."""

FLUSH_SECONDS = 1.0  # how long metrics are gathered
FINISH_SECONDS = 30.0  # how long the end of a run waits at most for a logger


def tracker_of(chosen: Chosen) -> Tracker:
    """Make one tracker of what the key ``logger`` says."""
    if isinstance(chosen, bool):
        return MLflowTracker() if chosen else Tracker()
    each = chosen if isinstance(chosen, list) else [chosen]
    alike = Counter[str]()
    trackers = []
    for one in each:
        if isinstance(one, Logger):
            alike[identity := _identity(one)] += 1
            one = LightningTracker(one, alike[identity])
        trackers.append(one)
    return trackers[0] if len(trackers) == 1 else Trackers(trackers)


class Trackers(Tracker):
    """Several trackers beside each other.

    Args:
        trackers: What gets everything that the run logs.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)
        self.keeps_models = any(tracker.keeps_models for tracker in self.trackers)

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Start each."""
        for tracker in self.trackers:
            tracker.start(run, metrics)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log to each."""
        for tracker in self.trackers:
            tracker.log_metrics(metrics, step)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Log to each."""
        for tracker in self.trackers:
            tracker.log_artifact(path, folder)

    def finish(self, status: RunStatus) -> None:
        """Finish each."""
        for tracker in self.trackers:
            tracker.finish(status)

    def summary(self) -> str | None:
        """Say where to look, a tracker after the other."""
        return "\n".join(filter(None, (tracker.summary() for tracker in self.trackers))) or None


class LightningTracker(Tracker):
    """A logger of Lightning, which gets the parameters and the metrics of a run, under the names that MLflow shows.

    A thread of its own hands it what ``metrics.csv`` has beyond what it got before. So it costs the training no time, and
    one that raises or blocks is told once and stops nothing. Each key and step is handed over once, also after a kill and
    a resume: ``loggers.json`` in the run directory notes how far each logger has got. A logger that joins when a run is
    resumed gets the earlier rounds too.

    Args:
        logger: The logger.
        number: 1, and more for another logger of the same class that writes to the same place.
    """

    def __init__(self, logger: Logger, number: int = 1) -> None:
        self.logger, self.name, self._number = logger, type(logger).__name__, number
        self._closing = threading.Event()
        self._status: RunStatus = "FINISHED"
        self._thread: threading.Thread | None = None
        self._warned = False

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Start the thread."""
        self._metrics, self._note = metrics, (run.directory / NOTE).absolute()
        params = {"name": run.name, **run.params}
        self._thread = threading.Thread(target=self._send, args=(params,), name=f"fedlit-{self.name}", daemon=True)
        self._thread.start()

    def finish(self, status: RunStatus) -> None:
        """Hand over what is left and close the logger, within `FINISH_SECONDS`; warn where it takes longer."""
        if self._thread is None or self._closing.is_set():
            return
        self._status = status
        self._closing.set()
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._warn(f"does not return within {FINISH_SECONDS:g} s; the run ends without it")

    def summary(self) -> str | None:
        """Say where the logger writes."""
        if self._thread is None or self._thread.is_alive():
            return None
        where: list[object] = []
        self._guarded(lambda: where.append(getattr(self.logger, "log_dir", None) or self.logger.save_dir))
        return f"{self.name}: {where[0]}" if any(where) else None

    # The thread.

    def _send(self, params: Mapping[str, object]) -> None:
        self._guarded(lambda: self.logger.log_hyperparams(dict(params)))
        got, position, closing = self._noted(), 0, False
        while not closing:
            closing = self._closing.wait(FLUSH_SECONDS)
            try:
                position = self._hand_over(position, got)
            except (OSError, ValueError) as error:  # the file of metrics is damaged, or the disk is full
                self._warn(f"gets no more metrics: {error}")
                break
        self._guarded(lambda: self.logger.finalize("success" if self._status == "FINISHED" else "failed"))

    def _hand_over(self, position: int, got: dict[str, int]) -> int:
        """Hand over the rows after a position, a step at a time; returns the position after them."""
        before = position
        for step, rows in groupby(self._metrics.since(position), key=lambda row: row[1][0]):
            fresh = {}
            for position, (_, key, value) in rows:  # noqa: B007
                if got.get(key, -1) < step:
                    fresh[key] = value
            if values := shown(fresh):
                got |= dict.fromkeys(fresh, step)
                self._write(got)  # first: what a kill interrupts may be lacking, but is not there twice
                self._guarded(lambda values=values, step=step: self.logger.log_metrics(values, step))
        if position > before:
            self._guarded(self.logger.save)
        return position

    def _noted(self) -> dict[str, int]:
        return _read(self._note).get(self._identity, {})

    def _write(self, got: Mapping[str, int]) -> None:
        with _NOTING, whole(self._note) as draft:
            draft.write_text(json.dumps(_read(self._note) | {self._identity: got}) + "\n")

    @property
    def _identity(self) -> str:
        return _identity(self.logger) + (f" {self._number}" if self._number > 1 else "")

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # a logger may fail in any way
            self._warn(f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}")

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "The logger %s %s. The run goes on; its metrics are in %s.", self.name, what, self._metrics.path
            )


def _identity(logger: Logger) -> str:
    """Give what tells a logger from others of the run: its class and folder, or its place on the net."""
    return f"{type(logger).__module__}.{type(logger).__name__} {getattr(logger, 'save_dir', None)}"


_NOTING = threading.Lock()


def _read(note: Path) -> dict[str, dict[str, int]]:
    try:
        return json.loads(note.read_text())
    except (FileNotFoundError, ValueError):
        return {}
