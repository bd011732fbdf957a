"""Ctrl-C and SIGTERM end a run at a round boundary."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


@contextmanager
def exiting_on_ctrl_c() -> Iterator[None]:
    """Within, Ctrl-C ends the process at once: imports take seconds, and nothing has begun that could be unwound."""
    other = threading.current_thread() is not threading.main_thread()
    if other or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Within, SIGTERM unwinds the process as Ctrl-C does, so that what is open gets closed."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


_remembered = 0


def remember_ctrl_c() -> None:
    """From here on the first `Interrupts` knows of a Ctrl-C that came before it, even if a library swallowed it.

    It is answered also where a shell has started the process deaf to it, as it does with what runs in the background.
    """

    def remember(signum: int, frame: FrameType | None) -> None:
        global _remembered
        _remembered = signum
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, remember)


_active: "list[Interrupts]" = []


def ask_to_end(signum: int) -> None:
    """Ask the run of this process to end after its round: it is a thread of somebody else's, to which no signal comes."""
    global _remembered
    if not _active:
        _remembered = signum
    for interrupts in _active:
        interrupts.signum = signum


class Interrupted(BaseException):
    """Raised out of a round that may be abandoned: nothing of it has been committed."""


class Interrupts:
    """While active, the first signal asks the run to stop, the second one kills it.

    Attributes:
        signum: The number of the signal that came, or 0.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._abandon = False

    def __enter__(self) -> "Interrupts":
        global _remembered
        self.signum, _remembered = _remembered, 0
        main = threading.current_thread() is threading.main_thread()  # signals come to no other
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
        """Within, a signal raises :class:`Interrupted` at once; it waits where other ranks would wait for this one."""
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
