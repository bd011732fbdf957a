"""Reasons why a site did not do what it was asked, in a form that may leave it."""

import sys
import traceback

from fedlit.core.errors import ConfigError, FedlitError, TrainingError
from fedlit.sites.budget import UnsafeSecret
from fedlit.sites.envelope import InvalidMessageError
from fedlit.sites.ledger import LedgerEntry
from fedlit.sites.messages import Failure
from fedlit.sites.own_data import Unreadable
from fedlit.sites.policy import PolicyError
from fedlit.sites.storage import MissingState, StateWriteError


class Unprepared(FedlitError):
    """Error of a site's process that has not prepared the run yet."""


class IncompatibleError(FedlitError):
    """Error of a site and a server that do not fit together, such as two versions."""


class OutOfTime(BaseException):
    """Error of an answer that takes longer than the site's file allows; code that wraps any `Exception` misses it."""

    public = "it took too long; limits.seconds"


class FailedOnData(FedlitError):
    """Error of an answer that failed after images were read for it; its cause is the error itself.

    Weights can be chosen so that a loss overflows for one image or label, so the cause stays at the site.
    """

    def __init__(self, entry: LedgerEntry) -> None:
        super().__init__("failed at the site")
        self.entry = entry


KINDS: dict[type[Exception], str] = {
    PolicyError: "refused",
    IncompatibleError: "unfit",
    MissingState: "state",
    Unprepared: "unprepared",
    InvalidMessageError: "damaged",
}
"""Kinds of failures that the server sees; all others are ``failed``."""

READABLE = (*KINDS, StateWriteError, ConfigError, TrainingError, OutOfTime)
"""Errors with readable texts; of others only the first line is sent, and the site's own log has the rest."""

ABOUT_FILES = (StateWriteError, MissingState, Unreadable, UnsafeSecret)
"""Errors whose texts name the site's files; without ``leaves.errors`` they stay in its own log."""


def failure_of(error: BaseException, whose: str, with_text: bool) -> Failure:
    """Print an error to the site's own log, and return what the server may see of it.

    Args:
        error: The error.
        whose: Site and verb, for the log.
        with_text: Whether texts that may name files or cells of a table leave the site.
    """
    on_data = isinstance(error, FailedOnData)
    error = error.__cause__ if on_data else error
    words = isinstance(error, READABLE)
    text = str(error) if words else f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
    print(f"{whose}: {text}", file=sys.stderr)
    if not words:
        traceback.print_exception(error)
    kind = next((kind for cls, kind in KINDS.items() if isinstance(error, cls)), "failed")
    hidden = on_data and not isinstance(error, PolicyError)
    if not with_text and (hidden or not words or isinstance(error, ABOUT_FILES)):
        advice = "the site's own log has the details; its administrator may set leaves.errors: true"
        text = f"{getattr(error, 'public', 'failed at the site')} ({advice})"
    return Failure(kind, text[:2000])
