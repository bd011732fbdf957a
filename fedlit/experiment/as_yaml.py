"""Objects that were made in Python, in the words of a YAML: a class and its arguments, as far as these are plain."""

from functools import partial
from inspect import Parameter, signature
from numbers import Number
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedlit.data.federated import FederatedDataModule

DEPTH = 5
"""Objects in objects beyond which only the class is told."""

WHOLES = (nn.Module, FederatedDataModule)
"""What has many attributes beside its arguments."""


def described(part: Any, depth: int = DEPTH) -> dict[str, Any]:
    """Give an object's class, and those of its constructor's arguments that it keeps under their names.

    An object that keeps others than these, such as a composition of aggregators, is told by all of its attributes; a
    module and a data module keep too much for that.
    """
    if isinstance(part, partial):
        return _named(part.func) | {"init_args": plain(part.keywords, depth - 1)}
    if isinstance(part, (FunctionType, type)):
        return _named(part)
    kind = type(part)
    told = _named(kind)
    if depth == 0 or isinstance(part, Tensor) or not hasattr(part, "__dict__"):
        return told
    kept = {**dict(getattr(part, "hparams", {})), **vars(part)}
    parameters = _parameters(kind)
    names = [name for name in parameters if name in kept]
    if len(names) < len(parameters) and not isinstance(part, WHOLES):
        names += [name for name in kept if name not in names]
    return told | {"init_args": {name.lstrip("_"): plain(kept[name], depth - 1) for name in names}}


def plain(value: Any, depth: int = DEPTH) -> Any:
    """Give a value as YAML has it; an object is described."""
    if value is None or isinstance(value, (bool, str)):
        return value
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


def _parameters(kind: type) -> list[str]:
    """Arguments of a class, those of its bases included where it passes them on."""
    names: dict[str, None] = {}
    for cls in kind.__mro__[:-1]:
        try:
            parameters = signature(cls.__init__).parameters
        except (TypeError, ValueError):  # of a class that is not written in Python
            break
        several = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
        names |= dict.fromkeys(n for n, each in parameters.items() if n != "self" and each.kind not in several)
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            break
    return list(names)
