"""Why a site has not done what it was asked, in the words that may leave it."""

import sys
import traceback

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.sites.envelope import Damaged
from fedlit.sites.messages import Failure
from fedlit.sites.own_data import Unreadable
from fedlit.sites.policy import Refused
from fedlit.sites.states import MissingState, NotKept


class Unprepared(Exception):
    """The site's process does not know what is trained: it is new, or the phase is."""


class Unfit(Exception):
    """The site and the server do not fit together."""


KINDS: dict[type[Exception], str] = {
    Refused: "refused",
    Unfit: "unfit",
    MissingState: "state",
    Unprepared: "unprepared",
    Damaged: "damaged",
}
"""What the server is told of a failure; all others are ``failed``."""

IN_WORDS = (*KINDS, NotKept, ConfigError, TrainingError)
"""Errors whose texts are for people; of others the first line is sent, and the rest stays in the site's own log."""

ABOUT_FILES = (NotKept, MissingState, Unreadable)
"""Errors whose texts name the site's files; by ``leaves.errors`` they stay in its own log."""


def failure_of(error: Exception, whose: str, with_text: bool) -> Failure:
    """Print an error for the site's own people, and give what the server is told of it.

    Args:
        error: What was raised.
        whose: Site and verb, for the log.
        with_text: Whether texts leave that may name files or cells of a table.
    """
    words = isinstance(error, IN_WORDS)
    text = str(error) if words else f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
    print(f"{whose}: {text}", file=sys.stderr)
    if not words:
        traceback.print_exception(error)
    kind = next((told for cls, told in KINDS.items() if isinstance(error, cls)), "failed")
    if not with_text and (not words or isinstance(error, ABOUT_FILES)):
        advice = "its own log says what; its people may set leaves.errors: true"
        text = f"{getattr(error, 'public', type(error).__name__)} ({advice})"
    return Failure(kind, text[:2000])
