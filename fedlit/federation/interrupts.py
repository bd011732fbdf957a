"""Handling of Ctrl-C and SIGTERM, which end a run between rounds."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


@contextmanager
def exiting_on_ctrl_c() -> Iterator[None]:
    """Context manager in which Ctrl-C exits immediately, because slow imports have nothing to clean up."""
    in_thread = threading.current_thread() is not threading.main_thread()
    if in_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Context manager in which SIGTERM raises SystemExit, so open resources are closed as on Ctrl-C."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


_remembered = 0


def remember_ctrl_c() -> None:
    """Record Ctrl-C for the first `Interrupts`, even if a library swallows the exception.

    This also works for background processes, which a shell starts with Ctrl-C ignored.
    """

    def remember(signum: int, frame: FrameType | None) -> None:
        global _remembered
        _remembered = signum
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, remember)


_active: "list[Interrupts]" = []


def ask_to_end(signum: int) -> None:
    """End the run of this process after its current round, from a thread, which receives no signals."""
    global _remembered
    if not _active:
        _remembered = signum
    for interrupts in _active:
        interrupts.signum = signum


class Interrupted(BaseException):
    """Exception that leaves a round that may be abandoned, because none of it is committed."""


class Interrupts:
    """Context manager in which the first signal asks the run to stop and the second kills it.

    Attributes:
        signum: Number of the signal that arrived, or 0.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._abandon = False

    def __enter__(self) -> "Interrupts":
        global _remembered
        self.signum, _remembered = _remembered, 0
        main = threading.current_thread() is threading.main_thread()  # which receives all signals
        signals = (signal.SIGINT, signal.SIGTERM) if main else ()
        self._previous = {s: signal.signal(s, self._handle) for s in signals}
        _active.append(self)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _active.remove(self)
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @contextmanager
    def may_abandon(self, alone: bool) -> Iterator[None]:
        """Context manager in which a signal raises :class:`Interrupted` immediately, if there are no other ranks."""
        if alone and self.signum:
            raise Interrupted
        self._abandon = alone
        try:
            yield
        finally:
            self._abandon = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        self.signum = signum
        if self._abandon:
            self._abandon = False
            raise Interrupted
