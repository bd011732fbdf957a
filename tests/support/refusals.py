"""Checks of refused mistakes: the class of the error, and the places and values that its text must name."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import pytest

from fedlit.core.errors import FedlitError


@contextmanager
def refused(kind: type[FedlitError], *names: object) -> Iterator[pytest.ExceptionInfo]:
    """Context manager of a block that raises one of fedlit's errors.

    Args:
        kind: Class of the error.
        names: What its text must name, such as the file with its line, a key of the configuration, or a client.
    """
    with pytest.raises(kind) as caught:
        yield caught
    _check(names, str(caught.value))


Row = tuple[object, ...]
"""A mistake: its id, a function that makes it, the class of the error, and what its text must name."""


def table(rows: Iterable[Row]) -> pytest.MarkDecorator:
    """Run a test once per row of a room's table of refusals, with ``provoke``, ``kind`` and ``names``."""
    params = [pytest.param(provoke, kind, names, id=id) for id, provoke, kind, *names in rows]
    return pytest.mark.parametrize(("provoke", "kind", "names"), params)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that raises an error, to replace another one."""

    def raised(*_: object, **__: object) -> NoReturn:
        raise error

    return raised


class Printed(NamedTuple):
    """Exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str

    def succeeded(self) -> str:
        """Check that the command has succeeded; return its output."""
        assert self.code == 0, self.err
        return self.out

    def refused(self, *names: object, code: int = 1) -> None:
        """Check that the command has refused a mistake; ``names`` as of the function ``refused``."""
        assert self.code == code, self.err
        _check(names, self.err)


Cli = Callable[[str], Printed]
"""The type of the fixture `fedlit_cli`."""


def _check(names: tuple[object, ...], text: str) -> None:
    missing = [name for name in map(str, names) if name not in text]
    assert not missing, text
