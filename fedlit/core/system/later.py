"""Work that goes on in a thread while the process does something else."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Later:
    """One piece of work at a time; its error is raised where its end is waited for.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._begun: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin the work, after what was begun before."""
        self.finish()
        self._thread = self._thread or ThreadPoolExecutor(1, self._name)
        self._begun = self._thread.submit(work)

    def finish(self) -> None:
        """Wait until the work is done; what it raised is raised here, once."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()
