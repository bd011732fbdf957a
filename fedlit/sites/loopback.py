"""Sites on this machine: the whole path of a federation across sites, with nothing between them but a pipe."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedlit.core.system.processes import context, starting
from fedlit.sites.carrier import Carrier, Lost, Ticket
from fedlit.sites.envelope import Damaged, Envelope

DIED = "its process died, and is started again"


class Died(BaseException):
    """Raised in a site of this process, where a process of its own would have died."""


class InProcess(Carrier):
    """Sites in this process: messages are bytes all the same. What raises :class:`Died` has died, and is made again.

    Args:
        sites: What answers bytes with bytes, by name; called to make it, and again after it has died.
    """

    name = "sites in this process"

    def __init__(self, sites: Mapping[str, Callable[[], Callable[[bytes], bytes]]]) -> None:
        self._makers, self._made = dict(sites), {}
        self._sent: dict[Ticket, bytes] = {}
        self._number = 0

    def sites(self) -> Mapping[str, bool]:
        """Name the sites; all are there."""
        return dict.fromkeys(self._makers, True)

    def send(self, site: str, envelope: Envelope, deadline: float | None = None) -> Ticket:
        """Keep a message until its reply is asked for."""
        self._number += 1
        ticket = Ticket(site, self._number)
        self._sent[ticket] = envelope.to_bytes()
        return ticket

    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | Lost]]:
        """Let each site answer in its turn."""
        for ticket in tickets:
            content = self._sent.pop(ticket)
            try:
                if ticket.site not in self._made:
                    self._made[ticket.site] = self._makers[ticket.site]()
                yield ticket, _opened(self._made[ticket.site](content))
            except Died:
                self._made.pop(ticket.site, None)
                yield ticket, Lost(DIED)

    def close(self) -> None:
        """Let go of the sites."""
        self._made.clear()


class Processes(Carrier):
    """Sites as processes of this machine, which are given their own file and messages, and nothing else.

    A site whose process dies is started again. All of them end with this process.

    Args:
        files: The sites' own files, by name.
    """

    name = "sites as processes of this machine"

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files, self._sites = dict(files), {}
        self._number = 0
        for name in self._files:
            self._sites[name] = SiteProcess(name, self._files[name])
            self._sites[name].start()

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

    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | Lost]]:
        """Yield replies as they come; one that comes too late is thrown away."""
        wanted, came = set(tickets), deque()
        while wanted:
            self._receive(came)
            while came:
                ticket, answer = came.popleft()
                if ticket in wanted:
                    wanted.discard(ticket)
                    yield ticket, answer

    def close(self) -> None:
        """End the processes."""
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
            with suppress(BrokenPipeError, ConnectionResetError):  # its death is noticed where replies are awaited
                site.connection.send_bytes(content)

    def _receive(self, came: deque[tuple[Ticket, Envelope | Lost]]) -> None:
        """Wait until something has come, or somebody's time is over."""
        for name in self._sites:
            self._forward(name)
        now = time.monotonic()
        ends = [
            u for site in self._sites.values() for u in (site.until, *(w[2] for w in site.waiting)) if u is not None
        ]
        ready = wait(
            [site.connection for site in self._sites.values() if site.process],
            max(0.0, min(ends) - now) if ends else None,
        )
        for site in self._sites.values():
            if site.connection in ready:
                ticket, answer = site.answering, self._answer(site)
                if ticket is not None:
                    came.append((ticket, answer))
        now = time.monotonic()
        for site in self._sites.values():
            late = [item for item in site.waiting if item[2] is not None and item[2] <= now]
            for item in late:
                site.waiting.remove(item)
                came.append((item[0], Lost("no reply within the deadline")))
            if site.until is not None and site.until <= now:  # it may still answer, and then takes the next message
                came.append((site.answering, Lost("no reply within the deadline")))
                site.until = None

    @staticmethod
    def _answer(site: "SiteProcess") -> Envelope | Lost:
        """What a site has sent, or that it is dead."""
        try:
            content = site.connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            site.close()
            return Lost(DIED)
        site.answering = site.until = None
        return _opened(content)


class SiteProcess:
    """A site's process, and the messages that wait for it.

    Args:
        name: Name of the site.
        file: The site's own file.
        lead: Who has asked for the run, as far as the site knows.
    """

    def __init__(self, name: str, file: Path, lead: str = "") -> None:
        self._context, self._name, self._file, self._lead = context(), name, file, lead
        self.waiting: deque[tuple[Ticket, bytes, float | None]] = deque()
        self.answering: Ticket | None = None
        self.until: float | None = None
        self.connection: Connection | None = None
        self.process: BaseProcess | None = None

    def start(self) -> None:
        """Start it; it ends with this process."""
        self.connection, theirs = self._context.Pipe()
        self.process = self._context.Process(
            target=serve,
            args=(theirs, str(self._file), os.getcwd(), self._lead),
            daemon=True,
            name=f"fedlit-site-{self._name}",
        )
        with starting():
            self.process.start()
        theirs.close()

    def close(self) -> None:
        """End it."""
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
    if hasattr(signal, "pthread_sigmask"):  # a fork server that a sweep has started blocks it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if home not in sys.path:  # one's own aggregators live there
        sys.path.insert(0, home)
    from fedlit.sites.serving import answering

    answer = answering(Path(file), lead, own_process=True)
    while True:
        try:
            connection.send_bytes(answer(connection.recv_bytes()))
        except (EOFError, OSError):
            return


def _die_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _opened(content: bytes) -> Envelope | Lost:
    try:
        return Envelope.from_bytes(content)
    except Damaged as error:
        return Lost(f"its reply is damaged: {error}")
