"""Fast imports: only on first use, and without garbage collections meanwhile."""

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType


def lazily(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its modules on first use (PEP 562).

    Args:
        package: Name of the package.
        file: Its ``__init__.py``; its exports are the imports of the ``__init__.pyi`` in the same folder, which type
            checkers and editors read.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    home_of = {
        name.name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names
    }

    def __getattr__(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(loaded(home_of[name]), name)

    return __getattr__, lambda: sorted(home_of), sorted(home_of)


def loaded(name: str) -> ModuleType:
    """Return a module; import it if necessary, without garbage collections meanwhile."""
    if name in sys.modules:
        return sys.modules[name]
    with uncollected():
        return import_module(name)


@contextmanager
def uncollected() -> Iterator[None]:
    """Context manager without garbage collections, for imports and long tables: they find nothing and cost a third.

    At the end all objects move to the oldest generation, so that no later collection visits the new ones on their way
    there.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # objects that the caller has frozen stay frozen
            gc.freeze()
            gc.unfreeze()
        gc.enable()
