"""Processes of this machine: how they start, what they keep in memory, and that they do not run a script again."""

import ctypes
import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from types import ModuleType

PRELOADED = ["timm", "fedlit.federation.engines.pool"]
"""What the fork server imports once, so that each process starts at once."""

CORES = "FEDLIT_CORES"
"""Variable of the environment that gives a process fewer cores than the machine has: several runs share them."""


def cores() -> int:
    """Count the processor cores that this process may use, at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(here, max(1, int(share))) if share.isdecimal() else here


def context(alike: bool = False) -> BaseContext:
    """Choose how new processes start.

    A copy of this process starts at once and shares what is in memory. Elsewhere Python's fork server gives processes that
    have inherited neither threads nor locks nor an initialised accelerator; where there is none (Windows), each process
    imports for itself.

    Args:
        alike: Whether new processes may share this one's past: they use one thread each, and no accelerator.
    """
    if alike and can_be_copied():
        return multiprocessing.get_context("fork")
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


def can_be_copied() -> bool:
    """Tell whether a copy of this process would lack nothing: it runs one thread of Python, and no GPU.

    A copy has but one thread, so that a lock which another one holds is held forever. Threads of libraries such as OpenMP's
    do not count, as in PyTorch's DataLoader: copies use one thread each. Libraries of macOS forbid copies.
    """
    torch = sys.modules.get("torch")
    threads = [thread for thread in threading.enumerate() if thread.name != WATCH]
    return (
        sys.platform == "linux"
        and threads == [threading.main_thread()] == [threading.current_thread()]
        and not (torch and torch.cuda.is_initialized())
    )


@contextmanager
def starting() -> Iterator[None]:
    """Context manager in which processes are started.

    They do not import the script or notebook that this one runs, which would begin to train a second time. Garbage is not
    looked for in what they share with this process: to look at an object writes to its page, which is a second one then.
    """
    main, frozen = sys.modules["__main__"], gc.get_freeze_count()
    sys.modules["__main__"] = ModuleType("__main__")
    if not frozen:  # what somebody has frozen stays so
        gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which `can_be_copied` has looked at
            yield
    finally:
        sys.modules["__main__"] = main
        if not frozen:
            gc.unfreeze()


def let_go(kept: Collection[int]) -> None:
    """Let a copied process go of what its original has open: pipes end, and locks are free, when the original lets go of them.

    Args:
        kept: File descriptors that this process needs.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):  # the numbers stay taken: somebody may close them once more
        if fd > 2 and fd not in (nothing, *kept):
            with suppress(OSError):  # the listing's own
                os.dup2(nothing, fd, inheritable=False)


WATCH = "fedlit-watch"
"""Name of the thread that waits for the end of another process, and has no lock."""


def end_with_parent() -> None:
    """Let this process end as soon as the one that has started it has ended, however it did."""
    threading.Thread(target=_wait_for_parent, name=WATCH, daemon=True).start()


def _wait_for_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


MALLOPT = {-1: 2**30, -3: 2**25}
"""Options of glibc's malloc and their bytes: up to M_TRIM_THRESHOLD of free memory stay with the process, and blocks up to
M_MMAP_THRESHOLD are part of it."""


def keep_freed_memory() -> None:
    """Let each local step use the memory that the step before has freed.

    By default glibc gives free memory at the end of the heap back to the system, and a step fetches it again page by page. That
    can take a third of a small model's step. For processes that do nothing but train; other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        for option, value in MALLOPT.items():
            ctypes.CDLL(None).mallopt(option, value)


def return_freed_memory() -> None:
    """Give the system what this process has freed, of which glibc keeps what lies between blocks that are in use.

    It takes a few milliseconds, and is for the end of work that has taken much more than it leaves.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
