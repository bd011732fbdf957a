"""The errors that fedlit raises on purpose; each has a stable key, and names what was found and the fix."""

import re
from collections.abc import Iterator

KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
"""Form of a key."""

WHERE = re.compile(r"(.+?): expected |(\S+(?: \S+)?(?:, \S+ \S+)*): ")
"""Beginning of a message that names a place: ``table.csv, line 3: expected ...`` or ``FedProx: mu must be ...``."""

FOUND = re.compile(r"\bfound (.+?)(?:[;:.] .*)?$", re.DOTALL)
ADVICE = re.compile(r"; (.+)$|\. ([A-Z].+)$", re.DOTALL)


class FedlitError(Exception):
    """Base class of the errors that fedlit raises on purpose.

    The texts follow ``<where>: expected <x>, found <y>; <advice>`` and may change. The key does not: there is one for
    each mistake. Programs and tests check the key, and ``tests/errors.md`` lists all. Parts of the text are None if it
    does not have them. Errors for programmers, such as those of a numeric function, are plain errors of Python.

    Args:
        message: The text for the user.
        key: Name of the mistake, such as ``data-root-missing``. All of fedlit's own errors have one.
    """

    def __init__(self, message: str = "", *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key

    @property
    def where(self) -> str | None:
        """The place that the text names: a file, a key of the configuration, a client or a class."""
        match = WHERE.match(str(self))
        return (match[1] or match[2]) if match else None

    @property
    def found(self) -> str | None:
        """The value that was found."""
        match = FOUND.search(str(self))
        return match[1] if match else None

    @property
    def advice(self) -> str | None:
        """The fix."""
        match = ADVICE.search(str(self))
        return (match[1] or match[2]) if match else None


class ConfigError(FedlitError, ValueError):
    """The configuration, or something that it names, cannot work; nothing has been trained yet."""


class DataError(FedlitError, ValueError):
    """Data cannot be used: images, tables, their options, or what a custom class makes of them."""


class MissingFileError(FedlitError, FileNotFoundError):
    """A file or folder of the data is missing."""


class TrainingError(FedlitError, RuntimeError):
    """Training cannot continue (a loss or an update is not finite, a process died); the last checkpoint is kept."""


class WorkerError(TrainingError):
    """A worker process could not start, or died."""


class CheckpointError(FedlitError, ValueError):
    """A checkpoint cannot be used here: it is missing, or of another layout or configuration."""


def key_of(error: BaseException | None, otherwise: str | None = None) -> str | None:
    """Return the key of an error, or of the first of its causes that has one."""
    while error is not None and getattr(error, "key", None) is None:
        error = error.__cause__
    return otherwise if error is None else error.key


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
