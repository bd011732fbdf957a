"""The process of a site, and loopback sites, which are processes of this machine instead of a network.

The process is a child of a loopback's server, or of the site's job of NVFlare. Neither of them needs PyTorch.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import private
from fedlit.core.system.processes import context, starting
from fedlit.sites.connection import kit_of
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import FAILED, Failure
from fedlit.sites.transport import NoReply, Ticket, Transport

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


def answering(file: Path, lead: str = "", own_process: bool = False) -> Callable[[bytes], bytes]:
    """Return the function that answers messages for a site; if it cannot start, every answer is a failure.

    Args:
        file: The site's own file.
        lead: Name of the lead who asked for the run, if the site knows it.
        own_process: Whether this process belongs only to the site: then other users cannot read what it writes, and the
            limits of memory and time apply.
    """
    import torch

    from fedlit.sites.own_data import read_settings
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
    from fedlit.sites.failures import OutOfTime

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


class SiteCrashed(BaseException):
    """Error that simulates the death of a site's process."""


class SitesInProcess(Transport):
    """Transport to sites in this process, with messages as bytes. It replaces a site that raises :class:`SiteCrashed`.

    Args:
        sites: Functions that make the sites, by name; a site answers bytes with bytes.
    """

    name = "sites in this process"

    def __init__(self, sites: Mapping[str, Callable[[], Callable[[bytes], bytes]]]) -> None:
        self._makers, self._made = dict(sites), {}
        self._sent: dict[Ticket, bytes] = {}
        self._number = 0

    def sites(self) -> Mapping[str, bool]:
        """Return the sites; all are connected."""
        return dict.fromkeys(self._makers, True)

    def send(self, site: str, envelope: Envelope, deadline: float | None = None) -> Ticket:
        """Store a message until its reply is collected."""
        self._number += 1
        ticket = Ticket(site, self._number)
        self._sent[ticket] = envelope.to_bytes()
        return ticket

    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | NoReply]]:
        """Yield the answer of each site in turn."""
        for ticket in tickets:
            content = self._sent.pop(ticket)
            try:
                if ticket.site not in self._made:
                    self._made[ticket.site] = self._makers[ticket.site]()
                yield ticket, _opened(self._made[ticket.site](content))
            except SiteCrashed:
                self._made.pop(ticket.site, None)
                yield ticket, NoReply(DIED)

    def close(self) -> None:
        """Release the sites."""
        self._made.clear()


class Processes(Transport):
    """Transport to sites that are processes of this machine, and receive only their own file and messages.

    A process that dies is started again. All of them end with this process.
    """

    name = "sites as processes of this machine"

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._sites = {name: SiteProcess(name, file) for name, file in files.items()}
        self._number = 0
        for site in self._sites.values():
            site.start()

    def sites(self) -> Mapping[str, bool]:
        """Name the sites; all are there, as one that has died is started with its next message."""
        return dict.fromkeys(self._sites, True)

    def send(self, site: str, envelope: Envelope, deadline: float | None = None) -> Ticket:
        """Send a message, or let it wait until the site has answered the one before."""
        self._number += 1
        ticket = Ticket(site, self._number)
        until = None if deadline is None else time.monotonic() + deadline
        self._sites[site].waiting.append((ticket, envelope.to_bytes(), until))
        self._forward(site)
        return ticket

    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | NoReply]]:
        """Yield replies as they come; a late one is discarded."""
        wanted, came = set(tickets), deque()
        while wanted:
            self._receive(came)
            while came:
                ticket, answer = came.popleft()
                if ticket in wanted:
                    wanted.discard(ticket)
                    yield ticket, answer

    def close(self) -> None:
        """Terminate the processes."""
        for site in self._sites.values():
            site.close()
        self._sites.clear()

    def _forward(self, name: str) -> None:
        site = self._sites[name]
        if site.waiting and site.answering is None:
            if site.process is None:
                site.start()
            ticket, content, site.until = site.waiting.popleft()
            site.answering = ticket
            with suppress(BrokenPipeError, ConnectionResetError):  # _receive notices that it has died
                site.connection.send_bytes(content)

    def _receive(self, came: deque[tuple[Ticket, Envelope | NoReply]]) -> None:
        """Wait for a reply, or for a deadline."""
        for name in self._sites:
            self._forward(name)
        now = time.monotonic()
        sites = list(self._sites.values())
        ends = [u for site in sites for u in (site.until, *(w[2] for w in site.waiting)) if u is not None]
        open_ones = [site.connection for site in sites if site.process]
        ready = wait(open_ones, max(0.0, min(ends) - now) if ends else None)
        for site in sites:
            if site.connection in ready:
                ticket, answer = site.answering, self._answer(site)
                if ticket is not None:
                    came.append((ticket, answer))
        now = time.monotonic()
        for site in sites:
            late = [item for item in site.waiting if item[2] is not None and item[2] <= now]
            for item in late:
                site.waiting.remove(item)
                came.append((item[0], NoReply("no reply within the deadline")))
            if site.until is not None and site.until <= now:  # it may still answer, and then receives the next message
                came.append((site.answering, NoReply("no reply within the deadline")))
                site.until = None

    @staticmethod
    def _answer(site: SiteProcess) -> Envelope | NoReply:
        """Return a site's reply, or the missing reply of a dead process."""
        try:
            content = site.connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            site.close()
            return NoReply(DIED)
        site.answering = site.until = None
        return _opened(content)


def _opened(content: bytes) -> Envelope | NoReply:
    try:
        return Envelope.from_bytes(content)
    except InvalidMessageError as error:
        return NoReply(f"its reply is damaged: {error}")
