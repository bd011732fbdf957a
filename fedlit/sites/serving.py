"""A site that answers from its own file, whichever process it runs in."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import private
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import FAILED, Failure
from fedlit.sites.policy import Limits
from fedlit.sites.reaching import kit_of
from fedlit.sites.settings import SiteSettings, read_settings
from fedlit.sites.site import Site
from fedlit.sites.states import JOB, forget

LOCK = ".lock"
"""File in the folder of states which the only process that answers for it holds."""

OTHER = 120
"""Seconds for which a process waits until another one that answers for the folder has ended."""


class OutOfTime(Exception):
    """An answer takes longer than the site's file allows."""


def answering(file: Path, lead: str = "", own_process: bool = False) -> Callable[[bytes], bytes]:
    """Give what answers messages for the site of a file; a file that cannot be read is an answer too.

    Args:
        file: The site's own file.
        lead: Who has asked for the run, as far as the site knows.
        own_process: Whether this process is the site's alone: what it writes is for its own user, and its limits of memory
            and of time hold.
    """
    torch.set_num_threads(1)
    try:
        kit = kit_of(file.absolute().parent.parent)  # the folder of a site has the file in local/
        until = kit.certificate().until.timestamp() if kit else None
        settings = read_settings(file)
        if own_process:
            _confine(settings.policy.limits)
        site = Site(settings, until=until, lead=lead)
        if kit:
            for job in forget(kit.folder.parent, settings.state_days or math.inf, time.time(), JOB):
                print(f"the folder of job {job} is removed after {settings.state_days:g} days", file=sys.stderr)
    except (ConfigError, ValueError, OSError) as error:
        print(f"{file}: {str(error).removeprefix(f'{file}: ')}", file=sys.stderr)
        reason = "its own file cannot be used; its log says what is wrong with it"
        return lambda content: Envelope.of(FAILED, Failure("unfit", reason)).to_bytes()
    return _Held(settings, site, own_process).answer


class _Held:
    """A site whose folder of states no other process answers for."""

    def __init__(self, settings: SiteSettings, site: Site, own_process: bool) -> None:
        self._settings, self._site, self._own_process = settings, site, own_process
        self._lock = FileLock(settings.folder / LOCK, mode=0o600, is_singleton=True)

    def answer(self, content: bytes) -> bytes:
        try:
            if not self._lock.is_locked:
                private(self._settings.folder)
                self._lock.acquire(timeout=OTHER)
        except Timeout:
            reason = (
                "another process answers for its folder of states; end that one, or give this one a folder of its own"
            )
            return Envelope.of(FAILED, Failure("unfit", reason)).to_bytes()
        except OSError:  # the site says so when it writes there
            pass
        with _within(self._settings.policy.limits.seconds) if self._own_process else nullcontext():
            return self._site.answer_bytes(content)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Context manager that ends what takes too long by an error, which the site answers in words."""

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
    """Keep what this process writes to its own user, and its memory below the limit."""
    os.umask(0o077)
    with suppress(ImportError, ValueError, OSError):  # Windows has none, and a smaller one may hold already
        import resource

        most = int(limits.memory * 10**9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
