"""A site that is made from its own file, in any process."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedlit.core.errors import ConfigError, FedlitError
from fedlit.core.system.files import private
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import FAILED, Failure
from fedlit.sites.policy import Limits
from fedlit.sites.reaching import kit_of
from fedlit.sites.settings import read_settings
from fedlit.sites.site import ResidentSite

LOCK = ".lock"
"""Lock file in the folder of states, so that only one process uses it."""

OTHER = 120
"""Seconds for which a process waits for another one that uses the folder to end."""


class OutOfTime(FedlitError):
    """Error of an answer that takes longer than the site's file allows."""

    public = "it took too long; limits.seconds"


def answering(file: Path, lead: str = "", own_process: bool = False) -> Callable[[bytes], bytes]:
    """Return the function that answers messages for a site; if it cannot start, every answer is a failure.

    Args:
        file: The site's own file.
        lead: Name of the lead who asked for the run, if the site knows it.
        own_process: Whether this process belongs only to the site: then other users cannot read what it writes, and the
            limits of memory and time apply.
    """
    torch.set_num_threads(1)
    try:
        kit = kit_of(file.absolute().parent.parent)  # the folder of a site has the file in local/
        until = kit.certificate().until.timestamp() if kit else None
        settings = read_settings(file)
        if own_process:
            _confine(settings.policy.limits)
        site = ResidentSite(settings, until=until, lead=lead)
    except (ConfigError, ValueError, OSError) as error:
        print(f"{file}: {str(error).removeprefix(f'{file}: ')}", file=sys.stderr)
        reason = "it cannot start: its own file, its certificate or its ledger is not valid; its own log has the error"
        return lambda content: Envelope.of(FAILED, Failure("unfit", reason)).to_bytes()
    lock = FileLock(settings.folder / LOCK, mode=0o600, is_singleton=True)

    def answer(content: bytes) -> bytes:
        try:
            if not lock.is_locked:
                private(settings.folder)
                lock.acquire(timeout=OTHER)
        except Timeout:
            reason = (
                "another process answers for its folder of states; end that process, or set another state folder here"
            )
            return Envelope.of(FAILED, Failure("unfit", reason)).to_bytes()
        except OSError:  # the site reports it when it writes there
            pass
        with _limited_time(settings.policy.limits.seconds) if own_process else nullcontext():
            return site.answer_bytes(content)

    return answer


@contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    """Context manager that raises an error after a number of seconds, which becomes the site's answer."""

    def late(*_: Any) -> None:
        raise OutOfTime(f"it took longer than limits.seconds: {seconds:g}")

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _confine(limits: Limits) -> None:
    """Hide what this process writes from other users, and limit its memory."""
    os.umask(0o077)
    with suppress(ImportError, ValueError, OSError):  # Windows has no limits, and a smaller one may be set already
        import resource

        most = int(limits.memory * 10**9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
