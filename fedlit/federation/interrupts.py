"""Handling of signals that end a run between rounds: Ctrl-C, SIGTERM, a closed terminal, and schedulers' warnings."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from fedlit.core.system.processes import ENDING, GENTLE, URGENT

EVENT_LOOPS = ("asyncio.", "ipykernel.")
"""Packages whose handlers of Ctrl-C cancel a task at its next ``await``, which a run does not have."""


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


_ending = False  # whether a signal has arrived that this process obeys


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Context manager in which all signals but Ctrl-C raise SystemExit, so open resources are closed as on Ctrl-C.

    They are closed in peace: after a first signal, all but SIGTERM are ignored.
    """
    global _ending
    _ending = False

    def end(signum: int, frame: FrameType | None) -> None:
        global _ending
        if _ending and signum in GENTLE:
            return
        _ending = True
        raise SystemExit(128 + signum)

    with _handling(end, [signum for signum in ENDING if signum != signal.SIGINT]):
        yield


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
    """Context manager in which the first signal asks the run to stop.

    A second Ctrl-C or SIGTERM kills it. A closed terminal sends SIGHUP, often several times, and does not insist.

    Attributes:
        signum: Number of the signal that arrived, or 0.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._abandon = False

    def __enter__(self) -> "Interrupts":
        global _remembered
        self.signum, _remembered = _remembered, 0
        self._open = ExitStack()
        self._open.enter_context(_handling(self._handle, ENDING))
        _active.append(self)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _active.remove(self)
        self._open.close()

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
        global _ending
        _ending = True
        if signum in URGENT and self.signum in URGENT:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        if signum in URGENT or not self.signum:
            self.signum = signum
        if self._abandon:
            self._abandon = False
            raise Interrupted


@contextmanager
def _handling(handler: Callable, signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Context manager that handles those signals that nobody else handles; only the main thread gets signals."""
    main = threading.current_thread() is threading.main_thread()
    previous = {s: signal.signal(s, handler) for s in signals if _is_free(s)} if main else {}
    try:
        yield
    finally:
        for signum, before in previous.items():
            signal.signal(signum, before)


def _is_free(signum: signal.Signals) -> bool:
    """Return whether a run may handle a signal: neither the user's script nor `nohup` has decided what it does."""
    handler = signal.getsignal(signum)
    if handler is signal.SIG_IGN:
        return signum == signal.SIGINT  # which a shell ignores for every command in the background
    if handler is signal.SIG_DFL and signum in GENTLE:
        return not _has_handler_in_c(signum)
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    home = getattr(getattr(handler, "func", handler), "__module__", None) or ""
    return home == __name__ or (signum == signal.SIGINT and home.startswith(EVENT_LOOPS))


def _has_handler_in_c(signum: signal.Signals) -> bool:
    """Return whether a library handles a signal without Python's knowledge, as ``faulthandler.register`` does."""
    try:
        caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
    except OSError:  # not Linux
        return False
    return bool(caught and int(caught[1], 16) >> (signum - 1) & 1)
