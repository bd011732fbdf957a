"""Fingerprints of objects that no YAML describes, by which a run in Python refuses a resume with other objects."""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import LightningModule

from fedlit.core.configured_optimizer import configured_optimizer
from fedlit.core.errors import CheckpointError, DataError
from fedlit.core.examples import digest, fetched
from fedlit.core.fabric import FederationFabric
from fedlit.core.labels import stored_labels
from fedlit.core.module import copy_of
from fedlit.data.clients import parts_of
from fedlit.data.federated import FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.experiment.as_yaml import plain

FETCHED = 8
"""Largest number of data sets from which examples are fetched, because each fetch may decode an image."""

FOLLOWED = 1000
"""Number of epochs or steps over which a scheduler's rates are compared."""

FILE = "given.json"
"""Name of the file in the run's directory."""


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
