"""A lead's connection to NVFlare's server, which is restored after it was lost."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedlit.core.errors import ConfigError
from fedlit.sites.reaching import Unreachable, kit_of
from fedlit.sites.submission import Lead

CONNECTING = 5
"""Seconds that a server has to answer."""

UNANSWERED = (
    api_spec.NoConnection, api_spec.SessionClosed, api_spec.NoReply, api_spec.InternalError,
    api_spec.NoClientsAvailable, api_spec.InvalidTarget, api_spec.CommandError, FLCommunicationError, RuntimeError,
    OSError,
)  # fmt: skip
"""Errors of a server that does not answer, or not now."""

DISABLED = "is disabled"
"""NVFlare's message for a name on its list of disabled clients."""

REFUSED = (api_spec.AuthenticationError, api_spec.AuthorizationError)

Answer = TypeVar("Answer")


@dataclass
class Link:
    """A connection to the server that is restored after it was lost."""

    lead: Lead  # The lead.
    say: Callable[[str], None]  # Called with each line for the user.
    _session: Session | None = None
    _lost: bool = False

    def ask(self, question: Callable[[Session], Answer]) -> Answer | None:
        """Ask the server; return None if it does not answer.

        Raises:
            ConfigError: If the server does not accept the lead or is of another federation, or the lead's certificate
                is refused or has expired.
        """
        try:
            if self._session is None:
                with _quiet():
                    self._session = new_secure_session(self.lead.user, str(self.lead.folder), timeout=CONNECTING)
                if self._lost:
                    self.say("the server answers again")
                self._lost = False
            with _quiet():
                return question(self._session)
        except REFUSED as error:
            self.close()
            raise ConfigError(f"--sites {self.lead.folder}: the server refuses {self.lead.user}: {error}") from error
        except UNANSWERED as error:
            self.close()
            if DISABLED in f"{error} {error.__context__}":
                raise ConfigError(
                    f"--sites {self.lead.folder}: the server refuses the certificate of {self.lead.user} (refused in "
                    "its own file); ask its administrator"
                ) from error
            if (kit := kit_of(self.lead.folder)) is not None:
                kit.certificate().check_dates()
            if not self._lost:
                with suppress(Unreachable):
                    list(kit.checks() if kit else ())
                self.say(f"the server does not answer ({str(error) or type(error).__name__}); waiting for it")
            self._lost = True
            return None

    def close(self) -> None:
        """Close the connection: a process with an open one does not end."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception), _quiet():
                session.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager in which NVFlare prints nothing, so that the user sees only the run."""
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
