"""The errors that fedlit raises on purpose; each names what was found and the fix."""

from collections.abc import Iterator


class FedlitError(Exception):
    """Base class of the errors that fedlit raises on purpose.

    The texts follow ``<where>: expected <x>, found <y>; <advice>`` and may change; programs tell errors apart by their
    classes. Errors for programmers, such as those of a numeric function, are plain errors of Python.
    """


class Submitted(FedlitError):
    """No mistake: the runs of a command are jobs of a cluster now, and it ends. The text says how to follow them."""


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


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
