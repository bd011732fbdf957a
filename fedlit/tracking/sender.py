"""The thread that sends a run to MLflow.

``metrics.csv`` is the queue: the thread sends the rows that the store has not acknowledged, at most 1,000 per request.
A store that is slow or unavailable therefore costs neither time nor memory. If a request fails, all that is left is
sent later. A resumed run skips the steps that the store has. If any request has failed, one pass at the end reads the
whole file again and logs what the store lacks.

MLflow's own queue cannot do this. Its threads are not daemons, so that the interpreter waits for them: for 20 rounds,
252 s with a server that is down, and 29 s with one that does not answer even without retries and with a timeout of
20 s. It logs only metrics, parameters and tags, in up to ten parallel requests, and forgets those that failed.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedlit.core.errors import FedlitError
from fedlit.tracking.addresses import MARK, without_credentials
from fedlit.tracking.base import MetricsFile, RunStatus
from fedlit.tracking.names import is_count, shown_name
from fedlit.tracking.store import MLflowStore, cut, first_line, is_lasting, is_refused

logger = logging.getLogger(__name__)

METRICS_PER_REQUEST = 1000
PARAM_LENGTH = 6000  # of a value; what MLflow takes since 2.8
FIRST_PAUSE, LONGEST_PAUSE, CLOSING_PAUSE = 0.5, 30.0, 1.0  # seconds between two attempts


class _EndError(Exception):
    """Nothing more is sent; the text is the reason, or "" if the end of the run waits no longer."""


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
        self._first: list[Callable[[], None]] = [store.open, self._log_tags, self._log_params, self._log_data]
        self._last: list[Callable[[], None]] = [store.forget_steps, lambda: self._send_metrics(0)]
        self._session_start = metrics.size()
        self._acknowledged = 0  # position in the file of metrics
        self._times = [(self._session_start, store.started_ms)]  # positions, and times of the rows before them
        self._files: dict[tuple[Path, str], None] = {}  # in order
        self._sending: tuple[Path, str] | None = None  # one of these files
        self._has_failed = False
        self._warned: set[str] = set()

    # Called by training: short, and never blocking or raising errors.

    def note_time(self) -> None:
        """Record that the last rows of the file were written now."""
        self._times.append((self.metrics.size(), _now_ms()))

    def add_file(self, path: Path, folder: str) -> None:
        """Queue a file or folder; adding it again while it waits has no effect."""
        self._files[path, folder] = None

    def close(self, status: RunStatus | None, seconds: float) -> None:
        """Send the remaining data, then the status, for at most ``seconds``."""
        self._status, self._deadline = status, time.monotonic() + seconds
        self.closing.set()

    def send_at_once(self, times: Sequence[tuple[int, int]], files: Iterable[tuple[Path, str]], seconds: float) -> None:
        """Send a finished run in this thread, in place of :meth:`start`, with the times of its rows."""
        self._session_start, self._times, self._files = 0, list(times), dict.fromkeys(files)
        self.close("FINISHED", seconds)
        self.run()

    def unsent(self) -> int:
        """Return the number of metrics and files of this session that the store has not acknowledged."""
        files = {*self._files, self._sending} - {None}
        return self.metrics.count_since(max(self._acknowledged, self._session_start)) + len(files)

    # The thread.

    def run(self) -> None:
        """Send data until the sender is closed; errors are logged, not raised."""
        failures, closing = 0, False
        try:
            while not closing:
                closing = self.closing.is_set()
                try:
                    self._send(closing)
                    failures = 0
                    self.closing.wait(self.flush_seconds)
                except (_EndError, FedlitError):
                    raise
                except Exception as error:  # of the store, its client or the network
                    self._has_failed |= not self._first
                    failures, closing = failures + 1, False
                    if failures > 1:  # one may be a conflict with another run
                        self._warn_unreachable(error)
                    self._pause(min(FIRST_PAUSE * 2 ** min(failures - 1, 20), LONGEST_PAUSE))
        except (_EndError, FedlitError) as error:  # also of the file of metrics
            if reason := str(error):
                self._warn("stopped", f"Logging to MLflow stopped: {reason}. The run continues; {self._kept}.")

    def _send(self, closing: bool) -> None:
        self._do(self._first)
        self._send_metrics(self._acknowledged)
        if closing and self._status is not None and not self.terminated:
            self._log("status", [(self._status,)], lambda _: self.store.terminate(self._status))
            self.terminated = True
        self._send_files()
        if closing and self._has_failed:
            self._do(self._last)

    def _do(self, tasks: list[Callable[[], None]]) -> None:
        while tasks:
            self._check_time()
            tasks[0]()
            del tasks[0]

    def _log_tags(self) -> None:
        # MLflow parameters cannot change: one that differs after a resume, such as rounds, becomes a tag.
        stored = self.store.params
        changed = {f"resumed.{key}": value for key, value in self.params.items() if stored.get(key, value) != value}
        self._log("tag", sorted({**self.tags, **changed}.items()), self.store.log_tags)

    def _log_params(self) -> None:
        new = [(key, value) for key, value in self.params.items() if key not in self.store.params]
        self._log("parameter", new, self.store.log_params)

    def _log_data(self) -> None:
        self._log("data", [("of the run",)], lambda _: self.store.log_data())

    def _send_metrics(self, position: int) -> None:
        """Send the rows after a position of the file."""
        noted = self._times[-1][0]
        rows = takewhile(lambda row: row[0] <= noted, self.metrics.since(position))
        while part := list(islice(rows, METRICS_PER_REQUEST)):
            timed = [(key, value, self._time_of(end), step) for end, (step, key, value) in part if not is_count(key)]
            # MLflow lists metrics in the order of their first values.
            values = sorted(((shown_name(key), *rest) for key, *rest in timed), key=itemgetter(0))
            self._log("metric", values, self.store.log_metrics)
            self._acknowledged = max(self._acknowledged, part[-1][0])

    def _time_of(self, end: int) -> int:
        """Return the time of the row that ends at a position, the same in each attempt."""
        return self._times[bisect_left(self._times, (end,))][1]

    def _send_files(self) -> None:
        """Send each waiting file; one that is added again meanwhile is sent again."""
        while self._files:
            self._check_time()
            path, folder = file = self._sending = next(iter(self._files))
            del self._files[file]
            try:
                self.store.log_artifact(path, folder)
            except Exception as error:
                if not is_lasting(error):
                    self._files[file] = None
                    raise
                self._warn(f"file {path}", f"{path} is not logged to MLflow: {first_line(error, self.store.uri)}")
            finally:
                self._sending = None

    def _log(self, kind: str, items: Sequence[tuple], send: Callable[[Sequence[Any]], None]) -> None:
        """Send the items in one request; drop those that MLflow rejects as invalid."""
        if not items:
            return
        self._check_time()
        try:
            send(items)
        except Exception as error:
            if not is_refused(error):
                raise
            if not self.store.is_active():
                raise _EndError(f"the MLflow run {self.store.run_id} was deleted") from error
            if len(items) > 1:  # Halve the request to isolate an invalid item from valid ones.
                self._log(kind, items[: len(items) // 2], send)
                self._log(kind, items[len(items) // 2 :], send)
                return
            name = f"{kind} {items[0][0]!r}"
            reason = first_line(error, self.store.uri)
            self._warn(name, f"MLflow rejects the {name}, which is not logged there: {reason}")

    @property
    def _kept(self) -> str:
        return f"the metrics are in {self.metrics.path}"

    def _check_time(self) -> None:
        if time.monotonic() >= self._deadline:
            raise _EndError

    def _pause(self, seconds: float) -> None:
        if self.closing.is_set():
            time.sleep(max(0.0, min(seconds, CLOSING_PAUSE, self._deadline - time.monotonic())))
            self._check_time()
        else:
            self.closing.wait(seconds)

    def _warn_unreachable(self, error: Exception) -> None:
        if time.monotonic() >= self._deadline:
            return  # finish() logs a warning
        reason = first_line(error, self.store.uri)
        self._warn(
            "unreachable",
            f"MLflow at {without_credentials(self.store.uri)} does not accept data ({reason}). The run continues and "
            f"tries again until its end; {self._kept}.",
        )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)


def _redacted(value: object) -> str:
    return without_credentials(str(value), MARK)


def _now_ms() -> int:
    return int(time.time() * 1000)
