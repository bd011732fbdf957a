"""Imports that are fast: of what is asked for alone, and without looking for garbage in between."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module


def lazily(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports a module when a name of it is asked for.

    This is PEP 562.

    Args:
        package: Name of the package.
        homes: Modules, and the names that the package exports of each.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return __getattr__, lambda: sorted(home_of), sorted(home_of)


@contextmanager
def uncollected() -> Iterator[None]:
    """Import modules, or read long tables, without collecting garbage in between, which costs a tenth and finds nothing."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
