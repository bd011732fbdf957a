"""Processes of this machine: what they are forked from, and that they do not run the script which started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, spawn
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext

PRELOADED = "fedlit.federation.engines.preload"
"""What the fork server imports once, so that each process starts at once."""

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
    """Where new processes come from: a fork server, which has imported everything but has run nothing.

    They start fast, and inherit neither threads nor locks nor an initialised accelerator. Where there is no fork server
    (Windows), each process imports for itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([PRELOADED])
    return made


def start_ahead() -> None:
    """Start the fork server now, so that it imports while this process does something else."""
    if context().get_start_method() != "forkserver":
        return
    # The terminal's Ctrl-C is this process's to handle.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        os.environ[ASKED_BY] = str(os.getpid())
        with without_main():
            forkserver.ensure_running()
    finally:
        os.environ.pop(ASKED_BY, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_early: int | None = None
"""Process id of the fork server that `start_early` has started, until it is known whether it is needed."""


def start_early() -> None:
    """Start the fork server before the configuration is read, which may want no workers: see `stop_unneeded`."""
    global _early
    if cores() > 1:
        start_ahead()
        _early = getattr(forkserver._forkserver, "_forkserver_pid", None)


def stop_unneeded() -> None:
    """End the fork server of `start_early`, from which nothing has been forked; who wants one later starts another."""
    global _early
    if _early is not None:
        os.kill(_early, signal.SIGTERM)
        forkserver._forkserver._stop()
        _early = None


def end_with_parent() -> None:
    """Let this process end as soon as the one that has started it has ended, however it did."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


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
