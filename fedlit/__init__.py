"""fedlit: federated learning experiments on imbalanced, heterogeneous medical images."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from fedlit.core.imports import Uncollected, loaded

__version__ = "0.1.0"

ALIASES = {"fedlit.errors": "fedlit.core.errors", "fedlit.serving": "fedlit.predictions.serving"}
"""Public paths, and the modules behind them. MLflow models that were logged by earlier versions name ``fedlit.serving``."""

LARGE = ("lightning", "mlflow", "timm", "torch", "torchvision")
"""Packages that take long to import, and a quarter less time where fedlit was imported before them."""

CALLS = {"fit": "fedlit.experiment.library"}
"""What Python code calls, and the modules behind it, which are imported when it is asked for."""


def __getattr__(name: str) -> object:
    if name in CALLS:
        return getattr(loaded(CALLS[name]), name)
    raise AttributeError(f"module 'fedlit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *CALLS})


class _Aliases(MetaPathFinder, Loader):
    """Import a module by its public path: the same module object, loaded when it is asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in ALIASES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(ALIASES[spec.name])
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has written the alias there


sys.meta_path.append(_Aliases())
sys.meta_path.insert(0, Uncollected(LARGE))
