"""Errors that custom classes raise, as one line with the class, the method, the file and the line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from types import FrameType

from fedlit.core.errors import ConfigError, DataError, TrainingError


def custom_code(error: BaseException) -> str:
    """Return the place of an error that a custom class raises: ``Class.method (file, line N)``; else "".

    The error is a ValueError or a RuntimeError. A custom class is built on a class of fedlit, and is not part of
    fedlit. Errors of other packages that its method calls count as its own. Errors of fedlit's functions do not,
    because they already name the mistake; nor do errors of other classes, such as a LightningModule, because they need
    their traceback.
    """
    if not isinstance(error, ValueError) and type(error) is not RuntimeError:
        return ""
    inner = list(takewhile(lambda e: _package(e[0]) != "fedlit", reversed([*traceback.walk_tb(error.__traceback__)])))
    for frame, _ in inner:
        kind, package = type(frame.f_locals.get("self")), _package(frame)
        if _outermost(kind.__module__) == package and any(_outermost(b.__module__) == "fedlit" for b in kind.__mro__):
            raising, line = next(each for each in inner if _package(each[0]) == package)
            return f"{kind.__name__}.{frame.f_code.co_name} ({raising.f_code.co_filename}, line {line})"
    return ""


@contextmanager
def named_errors() -> Iterator[None]:
    """Context manager that puts the place before the message of an error that a custom class raises.

    Raises:
        ConfigError, DataError, TrainingError: In place of the same, of another ValueError, and of a RuntimeError.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not (place := custom_code(error)):
            raise
        kind = next(k for k in (ConfigError, ValueError, RuntimeError) if isinstance(error, k))
        kind = {ValueError: DataError, RuntimeError: TrainingError}.get(kind, ConfigError)
        raise kind(f"{place}: {error}") from error


def _package(frame: FrameType) -> str:
    return _outermost(frame.f_globals.get("__name__", ""))


def _outermost(module: str) -> str:
    return module.partition(".")[0]
