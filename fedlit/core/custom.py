"""Errors that a custom class raises, as one line with the name of the class."""

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
        frames = list(traceback.walk_tb(error.__traceback__))
        modules = [frame.f_globals.get("__name__", "") for frame, _ in frames]
        home = type(owner).__module__
        if any(module.partition(".")[0] == "fedlit" for module in (home, modules[-1])):
            raise
        own = [place for place, module in zip(frames, modules, strict=True) if module == home]
        frame, line = (own or frames)[-1]
        where = f"{type(owner).__name__}.{method} ({frame.f_code.co_filename}, line {line})"
        raise ValueError(f"{where}: {error}") from error
