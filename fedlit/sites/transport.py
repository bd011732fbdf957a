"""Interface of a transport, which carries messages between a server and its sites."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedlit.core.errors import FedlitError
from fedlit.sites.envelope import Envelope


@dataclass(frozen=True)
class Ticket:
    """A sent message, by which its reply is collected."""

    site: str  # The site that received it.
    number: int  # Number of the message among all that the transport has sent.


@dataclass(frozen=True)
class NoReply:
    """A missing reply."""

    reason: str  # Readable reason why there is none.


class TransportClosedError(FedlitError):
    """Error of a transport that was closed: the run has not failed, and may resume with another transport."""


class Transport(ABC):
    """Base class of transports, which carry envelopes to sites and their replies back.

    A site answers one message at a time. A reply that comes after its deadline is discarded.
    """

    name: str = "a transport"
    """Readable name of the transport."""

    @abstractmethod
    def sites(self) -> Mapping[str, bool]:
        """Return all sites of the federation, and whether each is connected."""

    @abstractmethod
    def send(self, site: str, envelope: Envelope, deadline: float | None = None) -> Ticket:
        """Send a message.

        Args:
            site: The site that receives it.
            envelope: The message.
            deadline: Seconds after which there will be no reply; None waits as long as the site lives.
        """

    @abstractmethod
    def collect(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Ticket, Envelope | NoReply]]:
        """Yield the reply to each message, in the order in which they come.

        Raises:
            TransportClosedError: If the transport was closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the sites."""

    def lose(self, sites: Sequence[str]) -> None:  # noqa: B027
        """Treat sites as disconnected; transports that notice this themselves do nothing."""
