"""Loopback sites: processes of this machine, or functions in this one, instead of a network."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.process import DIED, SiteProcess
from fedlit.sites.transport import NoReply, Ticket, Transport


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
