"""Run command lines of fedlit in processes of their own, some at a time. They die with this process."""

import multiprocessing
import os
import runpy
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedlit.core.system.processes import CORES, cores, end_with_parent
from fedlit.federation.interrupts import Interrupts, remember_ctrl_c

POLL_SECONDS = 0.2
"""Largest time from a signal to its being passed on, and from one look at the live lines to the next."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)

PRELOADED = ("fedlit.cli.commands.fit", "fedlit.federation.engines.pool", "fedlit.models", "fedlit.tracking.figures")
"""Modules that the fork server imports once, so that every job starts at once. MLflow is none: where it is imported before
the tracker has set its environment, it reports to its makers."""


@dataclass(frozen=True)
class Job:
    """A command line of fedlit."""

    name: str  # Name of the job, unique among those that run together.
    words: tuple[str, ...]  # Words behind ``fedlit``.
    log: Path  # File that gets everything that the job prints.


def run_jobs(
    jobs: Iterable[Job],
    at_once: int,
    started: Callable[[Job], None],
    ended: Callable[[Job, int, bool], None],
    tick: Callable[[], None],
) -> int:
    """Run jobs in order, ``at_once`` of them side by side.

    They share the cores of the machine: each has its part of them for `federation.workers` and for decoding.

    A signal is passed on once, and no further job starts. A second signal ends this process, and the jobs with it.

    Args:
        jobs: Jobs to run.
        at_once: Largest number of processes at a time.
        started: Called before a job starts.
        ended: Called with a job, its exit code (negative after a signal), and whether a signal had come here before.
        tick: Called several times a second.

    Returns:
        The number of the signal that came, or 0.
    """
    waiting, running, passed_on = deque(jobs), {}, False
    with Interrupts() as interrupts:
        try:
            while running or (waiting and not interrupts.signum):
                while waiting and len(running) < at_once and not interrupts.signum:
                    job = waiting.popleft()
                    started(job)
                    running[job] = _start(job, max(1, cores() // at_once))
                wait([process.sentinel for process in running.values()], POLL_SECONDS)
                if interrupts.signum and not passed_on:
                    passed_on = True
                    for process in running.values():
                        with suppress(ProcessLookupError):  # it has just ended
                            os.kill(process.pid, interrupts.signum)
                for job, process in list(running.items()):
                    if not process.is_alive():
                        del running[job]
                        ended(job, process.exitcode, bool(interrupts.signum))
                tick()
        finally:
            for process in running.values():
                process.kill()
                process.join()
        return interrupts.signum


def _start(job: Job, share: int) -> BaseProcess:
    # A fork server has imported everything but has run nothing: a job starts at once, and inherits neither threads
    # nor locks nor an initialised accelerator. It is no daemon, as it may have workers of its own.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=_run, args=(job, share), name=job.name)
    # The terminal's Ctrl-C meets the fork server too, and a job that is not yet in a group of its own: both are deaf to
    # it. The tracker is started before, as its start ends the deafness in some versions of Python.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _run(job: Job, share: int) -> None:
    """Be a job: the body of its process, which has so many cores for itself."""
    os.environ[CORES] = str(share)
    os.setpgrp()  # the terminal's Ctrl-C is the parent's to pass on: a second signal would kill
    end_with_parent()
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    sys.argv = [sys.argv[0], *job.words]  # what a run on several devices starts its other ranks with
    try:
        remember_ctrl_c()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        runpy.run_module("fedlit", run_name="__main__")  # as ``python -m fedlit`` does
    except KeyboardInterrupt:  # before the command has begun
        sys.exit(128 + signal.SIGINT)
    finally:
        sys.stdout.flush()
