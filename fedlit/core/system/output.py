"""Standard output that may end before the process does."""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

GONE = (errno.EIO, errno.EPIPE)
"""Errors of a write to a terminal that was closed, and to a program that has ended, such as `tee`."""


class Output:
    """A stream that discards everything from the moment at which its terminal or its reader has gone.

    Args:
        stream: The stream, which has a file descriptor.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; return the number of its characters."""
        self._attempt(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        self._attempt(self._stream.writelines, lines)

    def flush(self) -> None:
        """Write what is buffered."""
        self._attempt(self._stream.flush)

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except OSError as error:
            if error.errno not in GONE:
                raise
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())  # also for what is buffered, and for libraries' own writes
            os.close(nothing)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Context manager in which a terminal that is closed does not end the process, which may have a run to save.

    Streams that are redirected, as in a notebook, stay as they are.
    """
    wrapped = {
        name: Output(stream)
        for name in ("stdout", "stderr")
        if (stream := getattr(sys, name)) is not None and stream is getattr(sys, f"__{name}__")
    }
    for name, stream in wrapped.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in wrapped.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, getattr(sys, f"__{name}__"))
