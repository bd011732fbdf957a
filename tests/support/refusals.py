"""Checks of refused mistakes: the key of the error, and the places and values that its text must name."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import pytest

from fedlit.core.errors import FedlitError


@contextmanager
def refused(key: str, *names: object) -> Iterator[pytest.ExceptionInfo]:
    """Context manager of a block that raises one of fedlit's errors.

    Args:
        key: Key of the error.
        names: What its text must name, such as the file with its line, a key of the configuration, or a client.
    """
    with pytest.raises(FedlitError) as caught:
        yield caught
    _check(caught.value.key, key, names, str(caught.value))


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that raises an error, to replace another one."""

    def raised(*_: object, **__: object) -> NoReturn:
        raise error

    return raised


class _Streams(NamedTuple):
    code: int
    out: str
    err: str


class Printed(_Streams):
    """Exit code, stdout and stderr of a command, and the key of the last error that it printed."""

    key: str | None = None

    def succeeded(self) -> str:
        """Check that the command has succeeded; return its output."""
        assert self.code == 0, self.err
        return self.out

    def refused(self, key: str | None, *names: object, code: int = 1) -> None:
        """Check that the command has refused a mistake; ``names`` as of the function ``refused``."""
        assert self.code == code, self.err
        _check(self.key, key, names, self.err)


Cli = Callable[[str], Printed]
"""The type of the fixture `fedlit_cli`."""


def _check(key: str | None, expected: str | None, names: tuple[object, ...], text: str) -> None:
    assert not re.search(r"\bnp\.\w+\(", text), text  # a user writes 'north', not np.str_('north')
    missing = [name for name in map(str, names) if name not in text]
    assert (key, missing) == (expected, []), text
