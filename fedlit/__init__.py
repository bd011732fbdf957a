"""fedlit: federated learning experiments on imbalanced, heterogeneous medical images."""

import sys

from fedlit.core import errors
from fedlit.core.system.imports import loaded

__version__ = "0.1.0"

sys.modules["fedlit.errors"] = errors  # its public path

CALLS = {"fit": "fedlit.experiment.api"}
"""Functions of the Python interface and their modules, which are imported on first use."""


def __getattr__(name: str) -> object:
    if name in CALLS:
        return getattr(loaded(CALLS[name]), name)
    raise AttributeError(f"module 'fedlit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *CALLS})
