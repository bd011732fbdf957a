"""Whether objects may fetch what they lack by network, such as pretrained weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FETCHES: ContextVar[bool] = ContextVar("fetches", default=True)


def may_fetch() -> bool:
    """Whether objects that are made now are for training: then weights are fetched; in a plan they stay random."""
    return _FETCHES.get()


@contextmanager
def without_fetching() -> Iterator[None]:
    """Make objects only to see whether they can be made: what they refuse they refuse, and nothing is fetched."""
    token = _FETCHES.set(False)
    try:
        yield
    finally:
        _FETCHES.reset(token)
