"""The thread that sends a run to MLflow: a queue, its order, and patience."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedlit.tracking.base import MetricsFile, RunStatus
from fedlit.tracking.mlflow_store import (
    MLflowStore,
    Point,
    cut,
    first_line,
    is_lasting,
    refusal,
    without_password,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

METRICS_PER_REQUEST = 1000
PARAMS_PER_REQUEST = 100
PARAM_LENGTH = 6000  # of a value; what MLflow takes since 2.8
FIRST_PAUSE, LONGEST_PAUSE, CLOSING_PAUSE = 0.5, 30.0, 1.0  # seconds between two attempts
TRIES_OF_A_BAD_REQUEST = 3


class _OutOfTimeError(Exception):
    """finish() has waited long enough."""


class _RunDeletedError(Exception):
    """Somebody deleted the MLflow run while it was being written."""


class _RefusedError(Exception):
    """MLflow answered, and the answer was that the request is invalid: sending it again cannot help."""


@dataclass(frozen=True)
class _Requests:
    """One kind of request: how many items one takes, how to send them, which of them the run lacks."""

    kind: str
    most: int
    send: Callable[[Sequence[Any]], None]
    lacking: Callable[[Sequence[Any], dict[str, set[int]]], Sequence[Any]]
    counted: bool = False


def _all(items: Sequence[Any], known: dict[str, set[int]]) -> Sequence[Any]:
    return items


class Sender(threading.Thread):
    """Sends to one store until it is closed and has nothing left, or is closed and out of time."""

    def __init__(
        self,
        store: "MLflowStore",
        metrics: MetricsFile,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        flush_seconds: float,
    ):
        super().__init__(name="fedlit-mlflow", daemon=True)
        self.store = store
        self.metrics = metrics
        self.params = dict(params)
        self.tags = dict(tags)
        self.flush_seconds = flush_seconds
        self.unsent = 0  # metrics and files that were given and neither sent nor dropped
        self.closing = False
        self.terminated = False  # the status has arrived
        self._metric_requests = _Requests("metric", METRICS_PER_REQUEST, store.log_metrics, store.lacking, counted=True)
        self._param_requests = _Requests("parameter", PARAMS_PER_REQUEST, store.log_params, _all)
        self._tag_requests = _Requests("tag", PARAMS_PER_REQUEST, store.log_tags, _all)
        self._status: RunStatus | None = None
        self._deadline = float("inf")
        # Rows that come after this were also given to add_metrics.
        self._rows_end = metrics.size()
        self._changed = threading.Condition()
        self._points: deque[Point] = deque()
        self._files: dict[tuple[Path, str], None] = {}  # an ordered set
        self._logged: dict[str, set[int]] = {}
        self._warned: set[str] = set()
        self._ended = False

    # Called by the training: short, never blocking, never raising.

    def add_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        points = []
        for key, value in metrics.items():
            try:
                points.append(Point(str(key), float(value), int(step), now))
            except (TypeError, ValueError):
                self._warn(f"metric {key}", f"The metric {key!r} is no number and is not logged: {value!r}.")
        with self._changed:
            if self.closing or self._ended:
                return
            self._points.extend(points)
            self.unsent += len(points)
            if len(self._points) >= METRICS_PER_REQUEST:
                self._changed.notify_all()

    def add_file(self, path: Path, folder: str) -> None:
        with self._changed:
            if not (self.closing or self._ended or (path, folder) in self._files):
                self._files[path, folder] = None
                self.unsent += 1

    def close(self, status: RunStatus | None, seconds: float) -> None:
        with self._changed:
            self.closing = True
            self._status = status
            self._deadline = time.monotonic() + seconds
            self._changed.notify_all()

    # The thread.

    def run(self) -> None:
        try:
            self._persist(self.store.open, refusable=False)
            self._send_tags_and_params()
            self._send_file_of_metrics()
            self._send_until_closed()
        except _OutOfTimeError:
            pass
        except _RunDeletedError:
            self._warn(
                "deleted",
                f"Somebody deleted the MLflow run {self.store.run_id}. The run goes on; its metrics "
                f"are in {self.metrics.path}.",
            )
        except Exception:
            logger.exception("Logging to MLflow stopped; the run goes on, metrics are in %s", self.metrics.path)
        finally:
            with self._changed:
                self._ended = True

    def _send_until_closed(self) -> None:
        pause, next_try = FIRST_PAUSE, 0.0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.closing or len(self._points) >= METRICS_PER_REQUEST, self.flush_seconds
                )
                closing = self.closing
            while self._points:
                self._deliver(self._take_points(), self._metric_requests)
            if self._files and (closing or time.monotonic() >= next_try):
                pause = FIRST_PAUSE if self._send_files() else min(2 * pause, LONGEST_PAUSE)
                next_try = time.monotonic() + pause
            if closing:
                if not self.terminated and self._status is not None:
                    self._terminate(self._status)
                if not self._files:
                    return
                self._pause(CLOSING_PAUSE)

    def _take_points(self) -> list[Point]:
        with self._changed:
            taken = [self._points.popleft() for _ in range(min(len(self._points), METRICS_PER_REQUEST))]
            fresh = [point for point in taken if self._is_fresh(point)]
            self.unsent -= len(taken) - len(fresh)
        return fresh

    def _is_fresh(self, point: Point) -> bool:
        steps = self._logged.get(point.key, ())
        if point.step in steps:
            return False
        # Rounds go forward: of what the store has, only this step and later ones can be met again.
        self._logged[point.key] = {point.step}.union(step for step in steps if step > point.step)
        return True

    def _send_tags_and_params(self) -> None:
        params = {key: cut(value, PARAM_LENGTH) for key, value in self.params.items()}
        known = self.store.params
        # MLflow never changes a parameter: one that differs after a resume (more rounds) becomes a tag.
        changed = {f"resumed.{key}": value for key, value in params.items() if known.get(key, value) != value}
        new = [(key, value) for key, value in params.items() if key not in known]
        self._deliver(sorted({**self.tags, **changed}.items()), self._tag_requests)
        self._deliver(new, self._param_requests)

    def _terminate(self, status: RunStatus) -> None:
        try:
            self._persist(lambda: self.store.terminate(status))
        except _RefusedError as refused:
            self._warn("status", f"MLflow refuses the status {status} of the run: {refused}")
        self.terminated = True

    def _send_file_of_metrics(self) -> None:
        """Send the rows that the run had before this session and that the MLflow run lacks."""
        for key in self.store.latest:
            self._logged[key] = self._persist(lambda key=key: self.store.steps(key), refusable=False)
        last: dict[str, int] = {}
        batch: list[Point] = []
        for step, key, value in self.metrics.rows(self._rows_end):
            last[key] = step
            if step not in self._logged.setdefault(key, set()):
                self._logged[key].add(step)
                batch.append(Point(key, value, step, self.store.started_ms))
            if len(batch) == METRICS_PER_REQUEST:
                self._deliver_rows(batch)
                batch = []
        self._deliver_rows(batch)
        for key, step in last.items():
            self._logged[key] = {known for known in self._logged[key] if known >= step}

    def _deliver_rows(self, points: list[Point]) -> None:
        with self._changed:
            self.unsent += len(points)
        self._deliver(points, self._metric_requests)

    def _send_files(self) -> bool:
        """Try each waiting file once; False if one of them has to wait for the store."""
        with self._changed:
            waiting = list(self._files)
        for path, folder in waiting:
            if time.monotonic() >= self._deadline:
                raise _OutOfTimeError
            with self._changed:
                del self._files[path, folder]  # given again from here on, it is sent again
            try:
                self.store.log_artifact(path, folder)
            except Exception as error:
                if not is_lasting(error):
                    self._warn_unreachable(error)
                    with self._changed:
                        self.unsent -= (path, folder) in self._files
                        self._files[path, folder] = None
                    return False
                self._warn(f"file {path}", f"{path} is not logged to MLflow: {first_line(error)}")
            with self._changed:
                self.unsent -= 1
        return True

    def _deliver(self, items: Sequence[Any], requests: "_Requests") -> None:
        """Send items in order until all arrived; drop what MLflow refuses."""
        for start in range(0, len(items), requests.most):
            self._deliver_one_request(items[start : start + requests.most], requests)

    def _deliver_one_request(self, items: Sequence[Any], requests: "_Requests") -> None:
        left = items
        tried = False
        known: dict[str, set[int]] = {}

        def request() -> None:
            nonlocal left, tried
            # A connection that broke does not tell whether the request was carried out, or half of it.
            if tried:
                left = requests.lacking(left, known)
            tried = True
            known.clear()
            if left:
                requests.send(left)

        try:
            self._persist(request)
        except _RefusedError as refused:
            if not self._persist(self.store.is_active, refusable=False):
                raise _RunDeletedError from refused
            if len(left) > 1:
                # One bad item must not take the others with it: halve until it is alone.
                self._count_sent(len(items) - len(left), requests)
                half = len(left) // 2
                self._deliver_one_request(left[:half], requests)
                self._deliver_one_request(left[half:], requests)
                return
            name = f"{requests.kind} {left[0][0]!r}"
            self._warn(name, f"MLflow refuses the {name}, which is not logged there: {refused}")
        self._count_sent(len(items), requests)

    def _count_sent(self, count: int, requests: "_Requests") -> None:
        if requests.counted:
            with self._changed:
                self.unsent -= count

    def _persist(self, action: Callable[[], T], refusable: bool = True) -> T:
        """Do it until it works.

        Raises:
            _RefusedError: If MLflow refuses it as invalid.
            _OutOfTimeError: If finish() no longer waits.
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
                    raise _RefusedError(first_line(error)) from error
                self._warn_unreachable(error)
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self.closing:
                self._changed.wait_for(lambda: self.closing, seconds)
                return
        time.sleep(max(0.0, min(seconds, CLOSING_PAUSE, self._deadline - time.monotonic())))

    def _warn_unreachable(self, error: Exception) -> None:
        if time.monotonic() >= self._deadline:
            return  # finish() has told it
        uri = without_password(self.store.uri)
        reason = first_line(error).replace(self.store.uri, uri)
        self._warn(
            "unreachable",
            f"MLflow at {uri} does not take what is sent ({reason}). The run goes on, and sending is tried "
            f"again until its end; the metrics are in {self.metrics.path}.",
        )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)
