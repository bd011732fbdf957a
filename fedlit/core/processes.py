"""Processes of this machine: what they are forked from, what they keep in memory, and that they do not run a script again."""

import ctypes
import gc
import multiprocessing
import os
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext

PRELOADED = "fedlit.federation.engines.preload"
"""What the fork server imports once, so that each process starts at once, where it is no copy of this process."""

ASKED_BY = "FEDLIT_ASKED_BY"
"""Variable of the environment that tells the fork server whose it is: it ends with that process, also while it imports."""

CORES = "FEDLIT_CORES"
"""Variable of the environment that gives a process fewer cores than the machine has: several runs share them."""


def cores() -> int:
    """Count the processor cores that this process may use, at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(here, max(1, int(share))) if share.isdecimal() else here


def context() -> BaseContext:
    """Where new processes come from: a fork server, which has imported everything; see `started_ahead`.

    They start fast, and inherit neither threads nor locks nor an initialised accelerator. Where there is no fork server
    (Windows), each process imports for itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([PRELOADED])
    return made


@contextmanager
def started_ahead(alike: bool) -> Iterator[None]:
    """Within, there is the fork server already, while this process does something else.

    It is a copy of this process where that is safe: it is there at once, and what has been imported is in memory once.
    Else it is an interpreter of its own, which imports for itself.

    Args:
        alike: Whether new processes may share this one's past: they use one thread each, and no accelerator.
    """
    global _copy
    if _copy is not None:  # of a run around this one
        yield
        return
    as_copy = alike and can_be_copied()
    with _uncounted() if as_copy else nullcontext():
        start_ahead(as_copy)
        try:
            yield
        finally:
            if _copy is not None:  # it would hold on to what this process lets go of, and not know what it imports
                _stop(_copy)
                _copy = None


def start_ahead(as_copy: bool = False) -> None:
    """Start the fork server now, as a copy of this process or as an interpreter that imports meanwhile."""
    if context().get_start_method() != "forkserver":
        return
    # The terminal's Ctrl-C is this process's to handle.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        os.environ[ASKED_BY] = str(os.getpid())
        with without_main(), _copying() if as_copy else nullcontext():
            forkserver.ensure_running()
    finally:
        os.environ.pop(ASKED_BY, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


COPIES = sys.platform == "linux"
"""Whether a process of this system can be copied with what it has loaded; libraries of macOS forbid it."""

_copy: int | None = None
"""Process id of the fork server, where it is a copy of this process."""


def can_be_copied() -> bool:
    """Whether a copy of this process would lack nothing: no thread of Python, no GPU, no file that somebody reads.

    A copy has but one thread, so that a lock which another one holds is held forever. Threads that do not run Python are
    those of libraries such as OpenMP's and OpenBLAS's, which PyTorch's DataLoader copies likewise. Copies of an open file
    share its position, and a GPU cannot be used by both.
    """
    torch = sys.modules.get("torch")
    known = {thread.ident for thread in threading.enumerate() if thread.name == WATCH} | {threading.get_ident()}
    return (
        COPIES
        and threading.current_thread() is threading.main_thread()
        and set(sys._current_frames()) <= known
        and not (torch and torch.cuda.device_count())
        and not any(map(_is_read, _descriptors()))
    )


def _descriptors() -> list[int]:
    """Files, pipes and the like that this process has open, but for the terminal's."""
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2]


FONTS = (".ttf", ".ttc", ".otf")
"""Ends of the names of fonts. matplotlib keeps those open with which it has drawn, and opens them anew in a copied process."""


def _is_read(fd: int) -> bool:
    """Whether a file is open for reading that a copy of this process would miss."""
    import fcntl

    with suppress(OSError):  # it has been closed
        if os.readlink(f"/proc/self/fd/{fd}").endswith(FONTS):
            return False
        return stat.S_ISREG(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    return False


@contextmanager
def _uncounted() -> Iterator[None]:
    """Within, garbage is not looked for in what there is already: in a copy, a look at it is what makes it a second one."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _copying() -> Iterator[None]:
    """Within, a fork server that is started is a copy of this process, not an interpreter of its own."""
    resource_tracker.ensure_running()  # which is none
    forkserver.set_forkserver_preload([])
    start = util.spawnv_passfds
    util.spawnv_passfds = _copied
    try:
        yield
    finally:
        util.spawnv_passfds = start


def _copied(interpreter: bytes | str, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """Do in a copy of this process what a new interpreter would be told to do; returns the copy's process id."""
    global _copy
    util._flush_std_streams()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which `can_be_copied` has looked at
            pid = os.fork()
        if not pid:
            _be_copy(arguments[-1], kept, before)
        _copy = pid
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_copy(code: str, kept: Sequence[int], signals: set[int]) -> None:
    """Let go of what is the original's, and run the code until the end of the process."""
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in _descriptors():  # their numbers stay taken: somebody may close them once more
            if fd not in (nothing, *kept):
                os.dup2(nothing, fd, inheritable=False)
        forkserver._forkserver._lock = threading.Lock()  # who starts a fork server holds it
        gc.enable()
        exec(code, {})
    except SystemExit:
        os._exit(0)
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


_early: int | None = None
"""Process id of the fork server that `start_early` has started, until it is known whether it is needed."""


def start_early() -> None:
    """Start the fork server before the configuration is read, which may want no workers: see `stop_unneeded`.

    Where processes can be copied that comes later, and at once.
    """
    global _early
    if cores() > 1 and not COPIES:
        start_ahead()
        _early = getattr(forkserver._forkserver, "_forkserver_pid", None)


def stop_unneeded() -> None:
    """End the fork server of `start_early`, from which nothing has been forked."""
    global _early
    if _early is not None:
        _stop(_early)
        _early = None


def _stop(pid: int) -> None:
    """End this fork server; who wants one later starts another."""
    if forkserver._forkserver._forkserver_pid == pid:  # it has not died meanwhile
        os.kill(pid, signal.SIGTERM)
        forkserver._forkserver._stop()


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


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the script or notebook which this one runs.

    A script would begin to train a second time, unless a guard keeps it from it.
    """
    tell = spawn.get_preparation_data

    def without(name: str) -> dict:
        return {key: value for key, value in tell(name).items() if not key.startswith("init_main")}

    spawn.get_preparation_data = without
    try:
        yield
    finally:
        spawn.get_preparation_data = tell
