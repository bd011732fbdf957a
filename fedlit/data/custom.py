"""Errors that a custom class raises, as one line with the name of the class."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named_errors(owner: object, method: str) -> Iterator[None]:
    """Context manager that names a custom class, and the line, in a ValueError that its method raises.

    Errors of fedlit's own code stay as they are: they name what is wrong already.

    Args:
        owner: The object whose method is called.
        method: Name of the method.

    Raises:
        ValueError: The error, with the class, the method, the file and the line before its message.
    """
    try:
        yield
    except ValueError as error:
        frames = [(frame.f_globals.get("__name__", ""), line) for frame, line in traceback.walk_tb(error.__traceback__)]
        home = type(owner).__module__
        if any(module.partition(".")[0] == "fedlit" for module in (home, frames[-1][0])):
            raise
        file = getattr(sys.modules.get(home), "__file__", None) or home
        lines = [line for module, line in frames if module == home]
        place = f" ({file}, line {lines[-1]})" if lines else ""
        raise ValueError(f"{type(owner).__name__}.{method}(){place}: {error}") from error
