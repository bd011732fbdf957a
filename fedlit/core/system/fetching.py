"""Permission to download missing files, such as pretrained weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FETCHES: ContextVar[bool] = ContextVar("fetches", default=True)


def may_fetch() -> bool:
    """Return whether new objects may download weights; in a plan they stay random instead."""
    return _FETCHES.get()


@contextmanager
def without_fetching() -> Iterator[None]:
    """Context manager in which objects are made only to validate them: they raise their errors and download nothing."""
    token = _FETCHES.set(False)
    try:
        yield
    finally:
        _FETCHES.reset(token)
