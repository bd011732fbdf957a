"""Asking sites, and what happens when one does not answer."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedlit.core.errors import TrainingError
from fedlit.core.messages import State
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import LASTING, REPLY, Failure, printable
from fedlit.sites.transport import NoReply, Transport

TRIES = 3
"""Number of times that a site is asked for the same thing before a run ends."""

PREPARING = 60
"""Least number of seconds that a site has to prepare itself: it imports modules and reads its data."""

OnError = Literal["repeat", "skip", "stop"]


class SitesError(TrainingError):
    """Error of a run whose sites have failed."""


@dataclass(frozen=True)
class Request:
    """A request to a site."""

    verb: str  # What is asked.
    site: str  # The site that is asked.
    client: str  # The client whose part it is.
    message: Any  # The fields.
    tensors: State  # The vectors.


@dataclass(frozen=True)
class NoAnswer:
    """Reason for a missing answer."""

    kind: str  # Kind of the failure.
    message: str  # Site, client and reason, readable.


@dataclass
class Asking:
    """Requests to sites: prepare the sites that need it, and handle failures as the federation's settings say."""

    transport: Transport  # The transport to the sites.
    prepare: Callable[[str], Request]  # Returns the request that prepares a site.
    # Reads a site's answer to it; raises `InvalidMessageError` if the answer does not fit.
    prepared: Callable[[Request, Envelope], object]
    on_error: OnError = "repeat"  # What happens when a site fails.
    quorum: int = 1  # Least number of answers with `skip`.
    deadline: float | None = None  # Seconds for all requests of one call; None waits.
    # Called with a site's name and each of its answers.
    heard: Callable[[str, Envelope], None] = lambda site, answer: None
    failed: bool = False  # Whether a site has failed during the last call, even if it has recovered.

    def __post_init__(self) -> None:
        self._ready: set[str] = set()
        self._failing: set[str] = set()  # sites with a reported failure since their last preparation

    def __call__(
        self,
        requests: Sequence[Request],
        read: Callable[[Request, Envelope], Any],
        what: str,
        on_error: OnError | None = None,
    ) -> Iterator[tuple[Request, Any]]:
        """Yield the answers in the order of the requests; with ``skip`` some may be missing.

        Args:
            requests: The requests, which are sent at once.
            read: Reads an answer; raises ``InvalidMessageError`` if it is not valid.
            what: What the requests are for, such as ``round 3``.
            on_error: What happens when a site fails, if it differs from the setting.

        Raises:
            SitesError: If a site has failed and the federation does not continue without it; names the site and the
                reason.
        """
        on_error, position, self.failed = on_error or self.on_error, 0, False
        answers, failures, waiting = {}, {}, list(range(len(requests)))
        for attempt in range(1, TRIES + 1):
            failures = {}
            for number, answer in self._once(requests, waiting, read, what=what):
                if isinstance(answer, NoAnswer):
                    failures[number], self.failed = answer, True
                    self._failing.add(requests[number].site)
                    continue
                answers[number] = answer
                while position in answers:
                    yield requests[position], answers.pop(position)
                    position += 1
            waiting, came = sorted(failures), len(requests) - len(failures)
            reasons = "; ".join(dict.fromkeys(failure.message for failure in failures.values()))
            lasting = any(failure.kind in LASTING for failure in failures.values())
            enough = on_error == "skip" and came >= min(self.quorum, len(requests))
            if not failures or enough or on_error == "stop" or (on_error == "repeat" and lasting):
                break
            if attempt < TRIES:
                warnings.warn(f"{what}: {reasons}; asking again (try {attempt + 1} of {TRIES})", stacklevel=2)
        if failures:
            if not enough:
                raise SitesError(f"{what}: {reasons}{self._advice(on_error, lasting, came, len(requests))}")
            warnings.warn(f"{what}: {reasons}; continuing with {came} of {len(requests)}", stacklevel=2)
        for number in sorted(answers):
            yield requests[number], answers[number]

    def once(
        self, requests: Sequence[Request], read: Callable[[Request, Envelope], Any]
    ) -> Iterator[tuple[Request, Any]]:
        """Ask only once, and yield each answer or failure as it comes; a failure does not end the run."""
        for number, answer in self._once(requests, range(len(requests)), read):
            yield requests[number], answer

    def _once(
        self,
        requests: Sequence[Request],
        numbers: Sequence[int],
        read: Callable[[Request, Envelope], Any],
        again: bool = False,
        what: str = "after the last round",
    ) -> Iterator[tuple[int, Any]]:
        """Prepare sites if needed, ask once, and yield answers and failures as they come."""
        new = sorted({requests[number].site for number in numbers} - self._ready)
        prepares = [self.prepare(site) for site in new]
        broken = {}
        for number, answer in self._exchange(dict(enumerate(prepares)), self.prepared, PREPARING):
            if isinstance(answer, NoAnswer):
                broken[new[number]] = answer
            else:
                self._ready.add(new[number])
        sent = {number: requests[number] for number in numbers if requests[number].site not in broken}
        unprepared = []
        for number, answer in self._exchange(sent, read):
            if isinstance(answer, NoAnswer) and answer.kind == "unprepared" and not again:  # a new process
                self._ready.discard(requests[number].site)
                unprepared.append(number)
                continue
            yield number, answer
        yield from ((number, broken[requests[number].site]) for number in numbers if requests[number].site in broken)
        if unprepared:
            for site in sorted({requests[number].site for number in unprepared} - self._failing):
                warnings.warn(f"{what}: site {site!r}: its process was started again; asking again", stacklevel=3)
            self._failing -= {requests[number].site for number in unprepared}
            yield from self._once(requests, unprepared, read, again=True, what=what)

    def _exchange(
        self, requests: dict[int, Request], read: Callable[[Request, Envelope], Any], least: float = 0.0
    ) -> Iterator[tuple[int, Any]]:
        tickets, hashed = {}, {}
        deadline = None if self.deadline is None else max(self.deadline, least)
        for number, request in requests.items():
            same = hashed.get(id(request.tensors))  # sites receive the same vectors
            saying = request.verb, request.message
            envelope = same.saying(*saying) if same else Envelope.of(*saying, request.tensors)
            hashed[id(request.tensors)] = envelope
            tickets[self.transport.send(request.site, envelope, deadline)] = number
        for ticket, answer in self.transport.collect(list(tickets)):
            number = tickets[ticket]
            if isinstance(answer, Envelope):
                self.heard(ticket.site, answer)
            yield number, _read(requests[number], answer, read)

    def _advice(self, on_error: OnError, lasting: bool, came: int, asked: int) -> str:
        if on_error == "skip":
            return (
                f"; only {came} of {asked} answered, and federation.quorum is {self.quorum}; "
                "resume from the last checkpoint"
            )
        if on_error == "stop" or lasting:
            return "; fix it and resume from the last checkpoint, or set federation.on_site_error: skip"
        return f" ({TRIES} times in a row); resume from the last checkpoint, or set federation.on_site_error: skip"


def _read(request: Request, answer: Envelope | NoReply, read: Callable[[Request, Envelope], Any]) -> Any:
    if isinstance(answer, NoReply):
        return _failed(request, "lost", answer.reason)
    try:
        if answer.verb == REPLY:
            return read(request, answer)
        failure = answer.message(Failure)
    except (InvalidMessageError, ValueError, TypeError, KeyError, RuntimeError) as error:
        filtered = f" ({answer.filtered})" if answer.filtered else ""
        return _failed(request, "damaged", f"its answer cannot be used: {error}{filtered}")
    return _failed(request, failure.kind, failure.reason)


def _failed(request: Request, kind: str, reason: str) -> NoAnswer:
    client = f", client {request.client!r}" if request.client else ""
    message = f"site {request.site!r}{client} ({request.verb}): {printable(reason)}"
    return NoAnswer(kind, message)
