"""The process of a site: what starts it, how it answers by the site's own file, and its limits.

It is a child of a loopback's process, or of the site's job of NVFlare, which need none of PyTorch.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedlit.core.errors import ConfigError, FedlitError
from fedlit.core.system.files import private
from fedlit.core.system.processes import context, starting
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import FAILED, Failure
from fedlit.sites.reaching import kit_of
from fedlit.sites.transport import Ticket

DIED = "its process died and is being restarted"

LOCK = ".lock"
"""Lock file in the folder of states, so that only one process uses it."""

OTHER = 120
"""Seconds for which a process waits for another one that uses the folder to end."""


class SiteProcess:
    """A site's process, and the messages that wait for it."""

    def __init__(self, name: str, file: Path, lead: str = "") -> None:
        self._context, self._name, self._file, self._lead = context(), name, file, lead
        self.waiting: deque[tuple[Ticket, bytes, float | None]] = deque()
        self.answering: Ticket | None = None
        self.until: float | None = None
        self.connection: Connection | None = None
        self.process: BaseProcess | None = None

    def start(self) -> None:
        """Start the process; it ends with this one."""
        self.connection, theirs = self._context.Pipe()
        args = (theirs, str(self._file), os.getcwd(), self._lead)
        self.process = self._context.Process(target=serve, args=args, daemon=True, name=f"fedlit-site-{self._name}")
        with starting():
            self.process.start()
        theirs.close()

    def close(self) -> None:
        """Terminate the process."""
        if self.process is None:
            return
        self.connection.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process = self.answering = self.until = None


def serve(connection: Connection, file: str, home: str, lead: str = "") -> None:
    """Body of a site's process: answer messages until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # the fork server of a sweep blocks it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if home not in sys.path:  # custom aggregators are in the working directory
        sys.path.insert(0, home)
    answer = answering(Path(file), lead, own_process=True)
    while True:
        try:
            connection.send_bytes(answer(connection.recv_bytes()))
        except (EOFError, OSError):
            return


def _die_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


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
    import torch

    from fedlit.sites.settings import read_settings
    from fedlit.sites.site import ResidentSite

    torch.set_num_threads(1)
    try:
        kit = kit_of(file.absolute().parent.parent)  # the folder of a site has the file in local/
        until = kit.certificate().until.timestamp() if kit else None
        settings = read_settings(file)
        if own_process:
            _confine(settings.policy.limits.memory)
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


def _confine(gigabytes: float) -> None:
    """Hide what this process writes from other users, and limit its memory."""
    os.umask(0o077)
    with suppress(ImportError, ValueError, OSError):  # Windows has no limits, and a smaller one may be set already
        import resource

        most = int(gigabytes * 10**9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
