"""What carries messages between a server and its sites, whatever is under it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedlit.sites.envelope import Envelope


@dataclass(frozen=True)
class Ticket:
    """A message that was sent: what its reply is collected with.

    Attributes:
        site: To whom.
        number: Of the message among all of the carrier's.
    """

    site: str
    number: int


@dataclass(frozen=True)
class Lost:
    """In the place of a reply: there will be none.

    Attributes:
        reason: Why, in words.
    """

    reason: str


class CutOff(Exception):
    """Raised where a carrier carries no more: the run has not failed, and may go on with another one."""


class Carrier(ABC):
    """Carries envelopes to sites, and their replies back.

    A site answers one message after the other. A reply that comes after its deadline is thrown away.
    """

    name: str = "a carrier"
    """What it is, for the person at the keyboard."""

    @abstractmethod
    def sites(self) -> Mapping[str, bool]:
        """Name all sites of the federation, and tell which are there."""

    @abstractmethod
    def send(self, site: str, envelope: Envelope, deadline: float | None = None) -> Ticket:
        """Send a message.

        Args:
            site: To whom.
            envelope: The message.
            deadline: Seconds after which there will be no reply; None waits as long as the site lives.
        """

    @abstractmethod
    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | Lost]]:
        """Yield the reply to each message, in the order in which they come.

        Raises:
            CutOff: Nothing is carried any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the sites."""

    def lose(self, sites: Sequence[str]) -> None:  # noqa: B027
        """Take sites for gone, as somebody else knows that they are; carriers that know it themselves do nothing."""
