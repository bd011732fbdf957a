"""Work in a thread while the process does something else."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Later:
    """Background thread for one task at a time; ``finish`` re-raises its error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._begun: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Start a task, after the previous one."""
        self.finish()
        self._thread = self._thread or ThreadPoolExecutor(1, self._name)
        self._begun = self._thread.submit(work)

    def finish(self) -> None:
        """Wait until the task is done; re-raise its error, once."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()
