"""Command lines of fedlit in their own processes, several at a time, which end with this process."""

import multiprocessing
import os
import runpy
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedlit.core.system.processes import CORES, ENDING, GENTLE, blocked, cores, end_with_parent
from fedlit.federation.interrupts import Interrupts, remember_ctrl_c

POLL_SECONDS = 0.2
"""Longest delay before a signal is passed on, and between updates of the display."""

PRELOADED = ("fedlit.cli.rehearsal",)
"""Module that the fork server imports once for several jobs, so that they start immediately."""


@dataclass(frozen=True)
class CommandLine:
    """A command line of fedlit."""

    name: str  # Unique among those that run together.
    words: tuple[str, ...]  # Words after ``fedlit``.
    log: Path  # File for everything that it prints.


def run_jobs(
    jobs: Iterable[CommandLine],
    at_once: int,
    started: Callable[[CommandLine], None],
    ended: Callable[[CommandLine, int, bool], None],
    tick: Callable[[], None],
    imports: Iterable[str] = (),
) -> int:
    """Run jobs in order, ``at_once`` at a time; return the number of the signal that this process got, or 0.

    The jobs share the cores of the machine: each uses its part of them for ``federation.workers`` and for decoding. The
    first signal is passed on to them, and no further job starts. A second signal ends this process and the jobs.

    ``started`` is called before a job starts, ``tick`` several times per second, and ``ended`` with a job, its exit
    code (negative after a signal), and whether this process had got a signal. ``imports`` are modules that many of the
    jobs import, in addition to `PRELOADED`; several jobs share one import of each.
    """
    waiting, running, passed_on = deque(jobs), {}, False
    # Also for a single job: more may follow, and the fork server imports only once, when it starts.
    preloaded = [*PRELOADED, *dict.fromkeys(imports)]
    with Interrupts() as interrupts:
        try:
            while running or (waiting and not interrupts.signum):
                while waiting and len(running) < at_once and not interrupts.signum:
                    job = waiting.popleft()
                    started(job)
                    running[job] = _start(job, max(1, cores() // at_once), preloaded)
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


def _start(job: CommandLine, share: int, preloaded: list[str]) -> BaseProcess:
    # The fork server has imported everything but has run nothing: a job starts immediately, and inherits neither
    # threads nor locks nor an initialised accelerator. It is not a daemon, because it may have worker processes.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded)
    process = context.Process(target=_run, args=(job, share, dict(os.environ)), name=job.name)
    # The terminal also sends signals to the fork server, and to a job that is not yet in its own group: both block
    # them. The resource tracker is started first, because its start unblocks signals in some versions of Python.
    with blocked(GENTLE):
        resource_tracker.ensure_running()
        with blocked(ENDING):
            process.start()
    return process


def _run(job: CommandLine, share: int, environment: Mapping[str, str]) -> None:
    """Run a job with ``share`` cores; this is the target of its process."""
    os.environ |= environment  # as it is now, not as it was when the fork server started
    os.environ[CORES] = str(share)
    os.setpgrp()  # the parent passes Ctrl-C on; a second signal from the terminal would kill
    end_with_parent()
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    sys.argv = [sys.argv[0], *job.words]  # with which a run on several devices starts its other ranks
    try:
        remember_ctrl_c()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        runpy.run_module("fedlit", run_name="__main__")  # as ``python -m fedlit`` does
    except KeyboardInterrupt:  # before the command has started
        sys.exit(128 + signal.SIGINT)
    finally:
        sys.stdout.flush()
