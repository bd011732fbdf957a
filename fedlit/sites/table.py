"""The table of code: every class that a received configuration may name, at a site and at a server.

The receiver looks up names here. It adds the classes that its own file allows, which are imported at its start, never
because a message names them.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.system.typed import Table, class_paths
from fedlit.experiment.choices import AXES, shipped
from fedlit.federation.callbacks import Callback
from fedlit.schedules import Schedule

SHIPPED = ("aggregators", "models", "objectives", "schedules")
"""Packages whose exports the table has; optimizers are those of ``torch.optim``."""

BASES = (Aggregator, Schedule, Callback, Optimizer, LightningModule, nn.Module)


@cache
def shipped_classes() -> dict[str, type]:
    """Return the classes that every receiver allows: by short name, by exported path and by canonical path."""
    table = {}
    for axis in SHIPPED:
        for cls in shipped(axis):
            table |= dict.fromkeys((cls.__name__, f"{AXES[axis].home}.{cls.__name__}", _path(cls)), cls)
    for name, cls in vars(torch.optim).items():
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer:
            table |= dict.fromkeys((name, f"torch.optim.{name}", _path(cls)), cls)
    return table


def table_of(allow: Sequence[str] = ()) -> Table:
    """Return the table of a receiver; the classes that its own file allows are imported.

    Raises:
        ConfigError: If one of them cannot be imported, or is not a class of an accepted type.
    """
    allowed = {}
    for path in allow:
        module, _, name = path.rpartition(".")
        try:
            cls = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"allow: {path} cannot be imported: {error}; install the package, or remove the path"
            ) from error
        if not isinstance(cls, type) or not issubclass(cls, BASES):
            raise ConfigError(
                f"allow: expected classes that derive from one of {', '.join(base.__name__ for base in BASES)}, "
                f"found {path}"
            )
        allowed |= dict.fromkeys((path, _path(cls)), cls)
    return Table(shipped_classes() | allowed, BASES)


def lacking(config: Any, table: Table | None = None) -> list[str]:
    """Return the classes of a configuration that are not in a table, by default the one of every receiver."""
    known = shipped_classes() if table is None else table.classes
    return [path for path in class_paths(config) if path not in known]


def line_to_add(paths: Sequence[str]) -> str:
    """Return the line that a receiver writes into its own file to allow some classes."""
    return f"allow: [{', '.join(paths)}]"


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
