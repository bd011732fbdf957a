"""Imports that are fast: of what is asked for alone, and without looking for garbage in between."""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


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
        return getattr(loaded(home_of[name]), name)

    return __getattr__, lambda: sorted(home_of), sorted(home_of)


def loaded(name: str) -> ModuleType:
    """Import a module, unless it has been, without looking for garbage in between."""
    if name in sys.modules:
        return sys.modules[name]
    with uncollected():
        return import_module(name)


@contextmanager
def uncollected() -> Iterator[None]:
    """Import modules, or read long tables, without looking for garbage in between, which takes a third longer and finds nothing.

    At the end all objects are put into the oldest generation, so that no later search goes through the new ones on their way there.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # what somebody has frozen stays so
            gc.freeze()
            gc.unfreeze()
        gc.enable()
