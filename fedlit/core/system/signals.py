"""Signals by which a user, a terminal or a scheduler asks a process to end."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

URGENT = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `kill` and schedulers send; a second one ends the process immediately."""

GENTLE = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What a closed terminal sends, often twice, and what schedulers send before the time is up. Windows has none."""

ENDING = (*URGENT, *GENTLE)


@contextmanager
def blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Context manager in which signals wait; a process that is started in it never gets them unless it unblocks them.

    This includes the fork server, and what it starts.
    """
    if not signals or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
