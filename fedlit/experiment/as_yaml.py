"""Descriptions of Python objects as in a YAML: a class and its arguments."""

from functools import partial
from numbers import Number
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.choices import constructor_arguments

DEPTH = 5
"""Depth of nested objects below which only the class is described."""

WHOLES = (nn.Module, FederatedDataModule)
"""Classes whose objects have many attributes besides their arguments."""


def described(part: Any, depth: int = DEPTH) -> dict[str, Any]:
    """Return an object's class, and the arguments of its constructor that it keeps as attributes of the same names.

    An object that does not keep all arguments, such as a composition of aggregators, is described by all of its
    attributes, unless it is a module or a data module.
    """
    if isinstance(part, partial):
        return _named(part.func) | {"init_args": plain(part.keywords, depth - 1)}
    if isinstance(part, (FunctionType, type)):
        return _named(part)
    kind = type(part)
    if depth == 0 or isinstance(part, Tensor) or not hasattr(part, "__dict__"):
        return _named(kind)
    attributes = {**dict(getattr(part, "hparams", {})), **vars(part)}
    arguments = constructor_arguments(kind)
    names = [name for name in arguments if name in attributes]
    if len(names) < len(arguments) and not isinstance(part, WHOLES):
        names += [name for name in attributes if name not in names]
    return _named(kind) | {"init_args": {name.lstrip("_"): plain(attributes[name], depth - 1) for name in names}}


def plain(value: Any, depth: int = DEPTH) -> Any:
    """Return a value as YAML can hold it; objects are described."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)  # YAML cannot hold a NumPy text
    if isinstance(value, (Number, np.generic)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple, set)):
        return [plain(each, depth) for each in value]
    if isinstance(value, dict):
        return {str(name): plain(each, depth) for name, each in value.items()}
    return described(value, depth)


def _named(kind: Any) -> dict[str, Any]:
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}"}
