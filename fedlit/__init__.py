"""fedlit: federated learning experiments on imbalanced, heterogeneous medical images."""

import sys

from fedlit.core import errors
from fedlit.core.system.imports import loaded

__version__ = "0.1.0"

__all__ = ["__version__", "aggregators", "data", "errors", "fit", "models", "objectives", "schedules", "testing"]

sys.modules["fedlit.errors"] = errors  # its public path


def __getattr__(name: str) -> object:
    if name == "fit":  # its module is imported on first use
        return loaded("fedlit.experiment.api").fit
    if name in __all__:
        return loaded(f"fedlit.{name}")
    raise AttributeError(f"module 'fedlit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
