"""Command lines of fedlit in processes of their own, some at a time, that die with this one."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedlit.interrupts import Interrupts

POLL_SECONDS = 0.2
"""Largest time from a signal to its being passed on, and from one look at the live lines to the next."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Job:
    """A command line of fedlit.

    Attributes:
        words: behind ``fedlit``.
        log: file that gets what it prints.
    """

    name: str
    words: tuple[str, ...]
    log: Path


def run_jobs(
    jobs: Iterable[Job],
    at_once: int,
    started: Callable[[Job], None],
    ended: Callable[[Job, int, bool], None],
    tick: Callable[[], None],
) -> int:
    """Run jobs in order, ``at_once`` of them side by side; returns the number of the signal that came, or 0.

    A signal is passed on, once, and no further job starts; a second one ends this process, and with it the jobs.

    Args:
        jobs: drawn one by one, as places get free.
        at_once: processes.
        started: called before a job starts.
        ended: called with a job's exit code, negative after a signal, and whether a signal had come here before.
        tick: called several times a second.
    """
    waiting, going, told = deque(jobs), {}, False
    with Interrupts() as interrupts:
        try:
            while going or (waiting and not interrupts.signum):
                while waiting and len(going) < at_once and not interrupts.signum:
                    job = waiting.popleft()
                    started(job)
                    going[job] = _start(job)
                wait([process.sentinel for process in going.values()], POLL_SECONDS)
                if interrupts.signum and not told:
                    told = True
                    for process in going.values():
                        _pass_on(process, interrupts.signum)
                for job, process in list(going.items()):
                    if not process.is_alive():
                        del going[job]
                        ended(job, process.exitcode, bool(interrupts.signum))
                tick()
        finally:
            for process in going.values():
                process.kill()
                process.join()
        return interrupts.signum


def _start(job: Job) -> BaseProcess:
    # A fork server has imported everything but has run nothing: a job starts at once, and inherits neither threads
    # nor locks nor an initialised accelerator. It is no daemon, as it may have workers of its own.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedlit.cli", "fedlit.engines.pool", "fedlit.reports.figures"])
    process = context.Process(target=_run, args=(job,), name=job.name)
    # The terminal's Ctrl-C meets the fork server too, and a job that is not yet in a group of its own: both are deaf to
    # it. The tracker is started before, as its start ends the deafness in some versions of Python.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _pass_on(process: BaseProcess, signum: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(process.pid, signum)


def _run(job: Job) -> None:
    """Body of a job's process."""
    os.setpgrp()  # the terminal's Ctrl-C is the parent's to pass on: a second signal would kill
    threading.Thread(target=_die_with_parent, daemon=True).start()
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    sys.argv = [sys.argv[0], *job.words]  # what a run on several devices starts its other ranks with
    from fedlit.cli import main  # which imports this module, by way of the sweep

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        main(list(job.words))
    except KeyboardInterrupt:  # before the command has begun
        sys.exit(128 + signal.SIGINT)
    finally:
        sys.stdout.flush()


def _die_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
