"""The thread that sends a run to MLflow.

``metrics.csv`` is the queue. Training writes metrics to it, and the thread sends the rows that the store has not
acknowledged: in the order of the file, at most 1,000 per request, and one request at a time. A store that is slow or
unavailable therefore costs neither time nor memory, and no row of the file is lost.

The progress of the store is only kept in memory. A record on disk could be wrong: a process may die after the store has
acknowledged a request and before it has recorded that, and a resume truncates the file to a checkpoint. Instead, a
thread that continues a run reads the whole file again, and the store (:meth:`MLflowStore.log_metrics`) skips rows that
the MLflow run already has. The same check follows a failed request, because a broken connection does not show if the
request was executed. So each key and step is logged exactly once.

Tags and parameters are sent first, then metrics and files, and the status last. A file that the store rejects
temporarily does not delay metrics and status, and is tried again until the run ends.
"""

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from fedlit.tracking.addresses import MARK, hidden, without_credentials
from fedlit.tracking.base import MetricsFile, RunStatus
from fedlit.tracking.names import is_count, shown_name
from fedlit.tracking.store import LoggedValue, MLflowStore, cut, first_line, is_lasting, refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")

METRICS_PER_REQUEST = 1000
PARAMS_PER_REQUEST = 100
PARAM_LENGTH = 6000  # of a value; what MLflow takes since 2.8
FIRST_PAUSE, LONGEST_PAUSE, CLOSING_PAUSE = 0.5, 30.0, 1.0  # seconds between two attempts
TRIES_OF_A_BAD_REQUEST = 3


class _OutOfTimeError(Exception):
    """The end of the run waits no longer."""


class _RunDeletedError(Exception):
    """The MLflow run was deleted while it was being written."""


class _RefusedError(Exception):
    """MLflow rejects the request as invalid, so sending it again cannot help."""


class Sender(threading.Thread):
    """Thread that sends data to a store until it is closed, and then until all data are sent or time has run out."""

    def __init__(
        self,
        store: MLflowStore,
        metrics: MetricsFile,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        flush_seconds: float,
    ):
        super().__init__(name="fedlit-mlflow", daemon=True)
        self.store = store
        self.metrics = metrics
        self.params = {key: cut(_redacted(value), PARAM_LENGTH) for key, value in params.items()}
        self.tags = {key: _redacted(value) for key, value in tags.items()}
        self.flush_seconds = flush_seconds
        self.closing = threading.Event()
        self.terminated = False  # the status has arrived
        self._status: RunStatus | None = None
        self._deadline = float("inf")
        self._session_start = metrics.size()
        self._acknowledged = 0  # position in the file of metrics
        self._times = deque([(self._session_start, store.started_ms)])  # positions, and times of the rows before them
        self._files: dict[tuple[Path, str], bool] = {}  # in order; False while the file is being sent
        self._files_lock = threading.Lock()
        self._warned: set[str] = set()

    # Called by training: short, and never blocking or raising errors.

    def note_time(self) -> None:
        """Record that the last rows of the file were written now."""
        self._times.append((self.metrics.size(), _now_ms()))

    def add_file(self, path: Path, folder: str) -> None:
        """Queue a file or folder; adding it again while it waits has no effect."""
        with self._files_lock:
            self._files[path, folder] = True

    def close(self, status: RunStatus | None, seconds: float) -> None:
        """Send the remaining data, then the status, for at most ``seconds``."""
        self._status, self._deadline = status, time.monotonic() + seconds
        self.closing.set()

    def unsent(self) -> int:
        """Return the number of metrics and files of this session that the store has not acknowledged."""
        return self.metrics.count_since(max(self._acknowledged, self._session_start)) + len(self._files)

    # The thread.

    def run(self) -> None:
        """Open the store and send data until the sender is closed; errors are logged, not raised."""
        try:
            self._persist(self.store.open, refusable=False)
            self._send_tags_and_params()
            self._deliver("data", [("of the run",)], lambda _: self.store.log_data())
            self._send_until_closed()
        except _OutOfTimeError:
            pass
        except _RunDeletedError:
            where = f"The run continues; its metrics are in {self.metrics.path}."
            self._warn("deleted", f"The MLflow run {self.store.run_id} was deleted. {where}")
        except Exception:
            trace = hidden(traceback.format_exc(), self.store.uri)
            where = self.metrics.path
            logger.error("Logging to MLflow stopped; the run continues, metrics are in %s\n%s", where, trace)

    def _send_until_closed(self) -> None:
        pause, next_try, closing = FIRST_PAUSE, 0.0, False
        while not closing:
            closing = self.closing.wait(self.flush_seconds)
            self._send_metrics()
            if closing or time.monotonic() >= next_try:
                pause = FIRST_PAUSE if self._send_files() else min(2 * pause, LONGEST_PAUSE)
                next_try = time.monotonic() + pause
        if self._status is not None:
            try:
                self._persist(lambda: self.store.terminate(self._status))
            except _RefusedError as refused:
                self._warn("status", f"MLflow rejects the status {self._status} of the run: {refused}")
            self.terminated = True
        while not self._send_files():
            self._pause(CLOSING_PAUSE)

    def _send_tags_and_params(self) -> None:
        stored = self.store.params
        # MLflow parameters cannot change: one that differs after a resume, such as rounds, becomes a tag.
        changed = {f"resumed.{key}": value for key, value in self.params.items() if stored.get(key, value) != value}
        tags = sorted({**self.tags, **changed}.items())
        params = [(key, value) for key, value in self.params.items() if key not in stored]
        for kind, items, send in (("tag", tags, self.store.log_tags), ("parameter", params, self.store.log_params)):
            for start in range(0, len(items), PARAMS_PER_REQUEST):
                self._deliver(kind, items[start : start + PARAMS_PER_REQUEST], send)

    def _send_metrics(self) -> None:
        while rows := list(islice(self.metrics.since(self._acknowledged), METRICS_PER_REQUEST)):
            timed = [(key, value, step, self._time_of(end)) for end, (step, key, value) in rows]
            values = [LoggedValue(shown_name(key), *rest) for key, *rest in timed if not is_count(key)]
            # MLflow lists metrics in the order of their first values.
            self._deliver("metric", sorted(values, key=attrgetter("key")), self.store.log_metrics)
            self._acknowledged = rows[-1][0]

    def _time_of(self, end: int) -> int:
        """Return the time of the row that ends at a position; calls must have increasing positions."""
        while self._times and self._times[0][0] < end:
            self._times.popleft()
        return self._times[0][1] if self._times else _now_ms()

    def _send_files(self) -> bool:
        """Try each waiting file once; returns False if the store is unavailable."""
        with self._files_lock:
            waiting = list(self._files)
        for file in waiting:
            if time.monotonic() >= self._deadline:
                raise _OutOfTimeError
            self._files[file] = False
            try:
                self.store.log_artifact(*file)
            except Exception as error:
                if not is_lasting(error):
                    self._warn_unreachable(error)
                    return False
                self._warn(f"file {file[0]}", f"{file[0]} is not logged to MLflow: {first_line(error, self.store.uri)}")
            with self._files_lock:
                if not self._files[file]:
                    del self._files[file]
        return True

    def _deliver(self, kind: str, items: Sequence[tuple], send: Callable[[Sequence[Any]], None]) -> None:
        """Send the items of one request until they have arrived; drop items that MLflow rejects."""
        if not items:
            return
        try:
            self._persist(lambda: send(items))
        except _RefusedError as refused:
            if not self._persist(self.store.is_active, refusable=False):
                raise _RunDeletedError from refused
            if len(items) > 1:
                # Halve the request to isolate an invalid item from valid ones.
                for part in (items[: len(items) // 2], items[len(items) // 2 :]):
                    self._deliver(kind, part, send)
                return
            name = f"{kind} {items[0][0]!r}"
            self._warn(name, f"MLflow rejects the {name}, which is not logged there: {refused}")

    def _persist(self, action: Callable[[], T], refusable: bool = True) -> T:
        """Repeat an action until it succeeds.

        Raises:
            _RefusedError: MLflow rejects the request as invalid.
            _OutOfTimeError: The end of the run waits no longer.
        """
        pause, refusals = FIRST_PAUSE, 0
        while True:
            if time.monotonic() >= self._deadline:
                raise _OutOfTimeError
            try:
                return action()
            except Exception as error:
                certainty = refusal(error)
                refusals += certainty is not None
                if refusable and (certainty or refusals >= TRIES_OF_A_BAD_REQUEST):
                    raise _RefusedError(first_line(error, self.store.uri)) from error
                self._warn_unreachable(error)
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pause(self, seconds: float) -> None:
        if self.closing.is_set():
            time.sleep(max(0.0, min(seconds, CLOSING_PAUSE, self._deadline - time.monotonic())))
        else:
            self.closing.wait(seconds)

    def _warn_unreachable(self, error: Exception) -> None:
        if time.monotonic() >= self._deadline:
            return  # finish() logs a warning
        reason = first_line(error, self.store.uri)
        self._warn(
            "unreachable",
            f"MLflow at {without_credentials(self.store.uri)} does not accept data ({reason}). The run continues and "
            f"tries again until its end; the metrics are in {self.metrics.path}.",
        )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)


def _redacted(value: object) -> str:
    return without_credentials(str(value), MARK)


def _now_ms() -> int:
    return int(time.time() * 1000)
