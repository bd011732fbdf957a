"""Processes of this machine: their signals, start and memory, and how they avoid running the main script again."""

import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType

URGENT = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `kill` and schedulers send; a second one ends the process immediately."""

GENTLE = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What a closed terminal sends, often twice, and what schedulers send before the time is up. Windows has none."""

ENDING = (*URGENT, *GENTLE)

PRELOADED = ["timm", "fedlit.federation.engines.pool"]
"""Modules that the fork server imports once, so that each process starts quickly."""

CORES = "FEDLIT_CORES"
"""Environment variable that gives a process fewer cores than the machine has, for several runs that share them."""


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


def cores() -> int:
    """Return the number of processor cores that this process may use, at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(here, max(1, int(share))) if share.isdecimal() else here


def context(alike: bool = False) -> BaseContext:
    """Choose how new processes start.

    A forked copy of this process starts at once and shares its memory. Otherwise Python's fork server starts processes
    without inherited threads, locks or an initialised accelerator. Without a fork server (Windows), each process
    imports everything itself.

    Args:
        alike: Whether new processes may be copies of this one: they use one thread each, and no accelerator.
    """
    if alike and can_be_copied():
        return multiprocessing.get_context("fork")
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    return server


def can_be_copied() -> bool:
    """Return whether a fork of this process is safe: it runs one thread of Python, and the machine has no GPU.

    With a GPU, PyTorch refuses backward passes in a copy of a process that has had one, on the CPU too.

    A copy has only one thread, so a lock that another thread holds is never released. Threads of libraries such as
    OpenMP do not count, as in PyTorch's DataLoader: copies use one thread each. Libraries of macOS forbid forks.
    """
    torch = sys.modules.get("torch")
    threads = [thread for thread in threading.enumerate() if thread.name != WATCH]
    return (
        sys.platform == "linux"
        and threads == [threading.main_thread()] == [threading.current_thread()]
        and not (torch and torch.accelerator.is_available())
    )


def may_have_children() -> bool:
    """Return whether this process may start others; the daemonic processes of a ``multiprocessing.Pool`` may not."""
    return not multiprocessing.current_process().daemon


@contextmanager
def starting() -> Iterator[None]:
    """Context manager in which processes are started.

    They do not import the script or notebook that this one runs, which would start training a second time, and leave it
    to this one to end when a terminal is closed or a scheduler warns, which reaches all of them. Freeze the collector:
    a collection would touch, and so copy, every shared page.
    """
    main, frozen = sys.modules["__main__"], gc.get_freeze_count()
    sys.modules["__main__"] = ModuleType("__main__")
    if not frozen:  # objects that the caller has frozen stay frozen
        gc.freeze()
    try:
        with blocked(GENTLE), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which `can_be_copied` has checked
            yield
    finally:
        sys.modules["__main__"] = main
        if not frozen:
            gc.unfreeze()


def let_go(kept: Collection[int]) -> None:
    """Close, in a forked process, the original's files but ``kept``, so that its pipes end and its locks are freed."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):  # keep the numbers in use, as their owner may close them again
        if fd > 2 and fd not in (nothing, *kept):
            with suppress(OSError):  # the listing's own
                os.dup2(nothing, fd, inheritable=False)


WATCH = "fedlit-watch"
"""Name of the thread that waits for the end of the parent process, and holds no lock."""


def end_with_parent(shared: Path | None = None) -> None:
    """End this process, and remove a folder of shared memory, once its parent process has ended for any reason."""

    def wait_for_parent() -> None:
        wait([multiprocessing.parent_process().sentinel])
        if shared is not None:
            shutil.rmtree(shared, ignore_errors=True)  # otherwise it stays in memory after the last process
        os._exit(1)

    threading.Thread(target=wait_for_parent, name=WATCH, daemon=True).start()


MALLOPT = {-1: 2**30, -3: 2**25}
"""Options of glibc's malloc in bytes: up to M_TRIM_THRESHOLD of free memory stay with the process, and blocks up to
M_MMAP_THRESHOLD are part of it."""


def keep_freed_memory() -> None:
    """Let each local step reuse the memory that the previous one has freed.

    By default glibc returns free memory at the end of the heap to the system, and a step fetches it again page by page,
    which can take a third of a small model's step. Other C libraries are left unchanged.
    """
    with suppress(OSError, AttributeError):
        for option, value in MALLOPT.items():
            ctypes.CDLL(None).mallopt(option, value)


def return_freed_memory() -> None:
    """Hand freed memory back to the system; glibc keeps the parts of it that lie between used blocks.

    This takes a few milliseconds, and is for the end of work that used much more memory than remains in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
