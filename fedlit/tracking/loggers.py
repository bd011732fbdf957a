"""Loggers of Lightning as trackers, and several trackers as one."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from lightning.pytorch.loggers import Logger

from fedlit.core.system.files import whole
from fedlit.tracking.base import MetricsFile, RunGroup, RunInfo, RunStatus, Tracker
from fedlit.tracking.mlflow import MLflowTracker
from fedlit.tracking.names import shown

logger = logging.getLogger(__name__)

LoggerSetting = Tracker | Logger | list[Tracker | Logger] | bool
"""Type of the key ``logger``: true is MLflow, false is only the run directory."""

NOTE = "loggers.json"
"""File in a run's directory with the last step of each key in each logger."""

FLUSH_SECONDS = 1.0  # between batches of metrics
FINISH_SECONDS = 30.0  # longest wait for a logger at the end of a run


def tracker_of(setting: LoggerSetting) -> Tracker:
    """Return a tracker for the value of the key ``logger``."""
    if isinstance(setting, bool):
        return MLflowTracker() if setting else Tracker()
    same_identity = Counter[str]()
    trackers = []
    for tracker in setting if isinstance(setting, list) else [setting]:
        if isinstance(tracker, Logger):
            same_identity[identity := _identity(tracker)] += 1
            tracker = LightningTracker(tracker, same_identity[identity])
        trackers.append(tracker)
    return trackers[0] if len(trackers) == 1 else Trackers(trackers)


class Trackers(Tracker):
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)
        self.keeps_models = any(tracker.keeps_models for tracker in self.trackers)
        self.imports = tuple(name for tracker in self.trackers for name in tracker.imports)

    def of_phase(self) -> Tracker:
        """Return the trackers of a phase."""
        return Trackers([tracker.of_phase() for tracker in self.trackers])

    def check(self, experiment: str, directory: Path | None) -> None:
        """Check each tracker."""
        for tracker in self.trackers:
            tracker.check(experiment, directory)

    def start(self, run: RunInfo, metrics: MetricsFile) -> None:
        """Start each tracker."""
        for tracker in self.trackers:
            tracker.start(run, metrics)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log to each tracker."""
        for tracker in self.trackers:
            tracker.log_metrics(metrics, step)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Log to each tracker."""
        for tracker in self.trackers:
            tracker.log_artifact(path, folder)

    def finish(self, status: RunStatus) -> None:
        """Finish each tracker."""
        for tracker in self.trackers:
            tracker.finish(status)

    def send_notes(self, directory: Path) -> bool:
        """Let each tracker send what the run has noted."""
        return any([tracker.send_notes(directory) for tracker in self.trackers])

    def log_groups(self, groups: Sequence[RunGroup]) -> None:
        """Pass the groups to each tracker."""
        for tracker in self.trackers:
            tracker.log_groups(groups)

    def summary(self) -> str | None:
        """Return the summaries of all trackers."""
        return "\n".join(filter(None, (tracker.summary() for tracker in self.trackers))) or None


class LightningTracker(Tracker):
    """Tracker that passes the parameters and metrics of a run to a logger of Lightning, under MLflow's names.

    A separate thread passes new rows of ``metrics.csv`` to the logger, so training does not wait. If the logger raises
    an error or blocks, one warning is logged and the run continues. Each key and step is passed only once, even after a
    kill and a resume, because ``loggers.json`` in the run directory records the progress of each logger. A logger that
    is added on a resume also receives the earlier rounds.

    Args:
        logger: The logger.
        number: 1, or higher for another logger of the same class that writes to the same location.
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
        """Pass the remaining rows and close the logger; warn if this takes longer than `FINISH_SECONDS`."""
        if self._thread is None or self._closing.is_set():
            return
        self._status = status
        self._closing.set()
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._warn(f"did not return within {FINISH_SECONDS:g} s; the run ends without it")

    def summary(self) -> str | None:
        """Return the location to which the logger writes."""
        if self._thread is None or self._thread.is_alive():
            return None
        locations: list[object] = []
        self._guarded(lambda: locations.append(getattr(self.logger, "log_dir", None) or self.logger.save_dir))
        return f"{self.name}: {locations[0]}" if any(locations) else None

    # The thread.

    def _send(self, params: Mapping[str, object]) -> None:
        self._guarded(lambda: self.logger.log_hyperparams(dict(params)))
        last_steps, position, closing = _read(self._note).get(self._identity, {}), 0, False
        while not closing:
            closing = self._closing.wait(FLUSH_SECONDS)
            try:
                position = self._pass_rows(position, last_steps)
            except (OSError, ValueError) as error:  # the file of metrics is damaged, or the disk is full
                self._warn(f"receives no more metrics: {error}")
                break
        self._guarded(lambda: self.logger.finalize("success" if self._status == "FINISHED" else "failed"))

    def _pass_rows(self, position: int, last_steps: dict[str, int]) -> int:
        """Pass the rows after a position to the logger, one step at a time; returns the position after them."""
        before = position
        for step, rows in groupby(self._metrics.since(position), key=lambda row: row[1][0]):
            fresh = {}
            for position, (_, key, value) in rows:  # noqa: B007
                if last_steps.get(key, -1) < step:
                    fresh[key] = value
            if values := shown(fresh):
                last_steps |= dict.fromkeys(fresh, step)
                with _NOTING, whole(self._note) as draft:  # first: a kill may lose a step, but must not log it twice
                    draft.write_text(json.dumps(_read(self._note) | {self._identity: last_steps}) + "\n")
                self._guarded(lambda values=values, step=step: self.logger.log_metrics(values, step))
        if position > before:
            self._guarded(self.logger.save)
        return position

    @property
    def _identity(self) -> str:
        return _identity(self.logger) + (f" {self._number}" if self._number > 1 else "")

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # loggers may raise any error
            self._warn(f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}")

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "The logger %s %s. The run continues; its metrics are in %s.", self.name, what, self._metrics.path
            )


def _identity(logger: Logger) -> str:
    return f"{type(logger).__module__}.{type(logger).__name__} {getattr(logger, 'save_dir', None)}"


_NOTING = threading.Lock()


def _read(note: Path) -> dict[str, dict[str, int]]:
    try:
        return json.loads(note.read_text())
    except (FileNotFoundError, ValueError):
        return {}
