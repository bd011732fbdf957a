"""Imports that are fast: of what is asked for alone, and without looking for garbage in between."""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
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


class Uncollected(MetaPathFinder):
    """Have packages imported without looking for garbage in between, whoever imports them.

    Args:
        packages: Their names.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        self._packages, self._asked = set(packages), set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find it."""
        if name not in self._packages or name in self._asked:
            return None
        self._asked.add(name)
        try:
            spec = util.find_spec(name)
        finally:
            self._asked.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = uncollected()(spec.loader.exec_module)
        return spec
