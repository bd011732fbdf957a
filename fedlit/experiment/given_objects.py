"""Objects of a run in Python: their description as in a YAML, and fingerprints, which a resume compares."""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Mapping
from functools import partial
from numbers import Number
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import CheckpointError, DataError
from fedlit.core.examples import digest, fetched
from fedlit.core.fabric import FederationFabric
from fedlit.core.labels import stored_labels
from fedlit.core.module import copy_of
from fedlit.data.clients import parts_of
from fedlit.data.federated import FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.experiment.choices import constructor_arguments

DEPTH = 5
"""Depth of nested objects below which only the class is described."""

WHOLES = (nn.Module, FederatedDataModule)
"""Classes whose objects have many attributes besides their arguments."""

FETCHED = 8
"""Largest number of data sets from which examples are fetched, because each fetch may decode an image."""

FOLLOWED = 1000
"""Number of epochs or steps over which a scheduler's rates are compared."""

FILE = "given.json"
"""Name of the file in the run's directory."""


def described(part: Any, depth: int = DEPTH) -> dict[str, Any]:
    """Return an object's class, and the arguments of its constructor that it keeps as attributes of the same names.

    A data module, which fills ``clients``, keeps an argument of that name as ``_clients``. An object that does not keep
    all arguments, such as a composition of aggregators, is described by all of its attributes, unless it is a module or
    a data module.
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
    kept = ["_clients" if name == "clients" and "_clients" in attributes else name for name in arguments]
    names = [name for name in kept if name in attributes]
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


def fingerprints(module: LightningModule, data: FederatedDataModule, fabric: FederationFabric) -> dict[str, str]:
    """Return fingerprints of a module's optimizer and of data sets that are objects, by name."""
    prints = {"the optimizer of the model": _of_optimizer(module, fabric)}
    if isinstance(data, GivenClients):
        prints["the data"] = _of_data(data)
    return prints


def write_fingerprints(directory: Path, prints: Mapping[str, str]) -> None:
    """Write fingerprints into a run's directory."""
    (directory / FILE).write_text(json.dumps(dict(prints), indent=1))


def check_same(directory: Path, prints: Mapping[str, str]) -> None:
    """Refuse to resume a run with other objects than those with which it began."""
    file = directory / FILE
    before = json.loads(file.read_text()) if file.exists() else {}
    for name, now in prints.items():
        if before.get(name, now) != now:
            raise CheckpointError(
                f"{directory}: expected {name} with which the run started, {before[name]}, found {now}; pass the "
                "former, or start a new run"
            )


def _of_optimizer(module: LightningModule, fabric: FederationFabric) -> str:
    """Return the class of a module's optimizer, its settings, and a digest of a scheduler's first rates."""
    module = copy_of(module)
    module.fabric = fabric
    made = configured_optimizer(module)
    optimizer, scheduler = made.optimizer, made.scheduler
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    groups = [
        ", ".join(f"{key} {plain(value)}" for key, value in group.items() if value is not None and value is not False)
        for group in settings
    ]
    described = f"{type(optimizer).__qualname__} ({'; '.join(groups)})"
    if scheduler is None:
        return described
    rates = []
    with warnings.catch_warnings(), contextlib.suppress(ValueError):  # the scheduler ends
        warnings.simplefilter("ignore")  # of a scheduler's step before the first of the optimizer
        for _ in range(FOLLOWED):
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
            scheduler.step()
    digested = hashlib.sha256(repr((made.interval, made.frequency, rates)).encode()).hexdigest()[:16]
    return f"{described} with {type(scheduler).__qualname__} ({digested})"


def _of_data(data: GivenClients) -> str:
    """Return a digest of all labels of data sets, and of the first and last examples of at most 8 of them.

    Examples that differ when they are fetched again are left out.
    """
    digests = []
    parts = [(f"{name}/{split}", part) for name, client in data.clients.items() for split, part in parts_of(client)]
    parts += [(f"test/{name}", part) for name, part in data.test_sets.items()]
    every = -(-len(parts) // FETCHED)
    for number, (name, part) in enumerate(parts):
        labels = stored_labels(part)
        if hasattr(labels, "shape"):
            digests.append((name, digest(labels)))
        if number % every == 0:
            with contextlib.suppress(DataError):  # they are refused later, with the name of the client
                examples = [(fetched(part, place), fetched(part, place)) for place in {0: None, len(part) - 1: None}]
                digests += [(name, once) for once, again in examples if once == again]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]
