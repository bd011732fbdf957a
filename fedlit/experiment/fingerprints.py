"""What a run in Python remembers of objects that no YAML describes, so that a resume with others is refused."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import LightningModule

from fedlit.core.errors import CheckpointError
from fedlit.core.labels import stored_labels
from fedlit.core.module import copy_of
from fedlit.core.optimizer import single_optimizer
from fedlit.data.clients import parts_of
from fedlit.data.examples import digest, fetched
from fedlit.data.federated import FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.experiment.as_yaml import plain
from fedlit.federation.scheduler import scheduled

FETCHED = 8
"""Parts of the data of which examples are fetched, at most; each fetch may decode an image."""

FOLLOWED = 1000
"""Epochs or steps over which a scheduler's rates are looked at."""

FILE = "given.json"
"""Where a run keeps its fingerprints."""


def fingerprints(module: LightningModule, data: FederatedDataModule) -> dict[str, str]:
    """Give what of a module and of data sets is in no configuration, by what it is."""
    given = {"the optimizer of the model": _of_optimizer(module)}
    if isinstance(data, GivenClients):
        given["the data"] = _of_data(data)
    return given


def keep(directory: Path, given: Mapping[str, str]) -> None:
    """Write fingerprints into a run's directory."""
    (directory / FILE).write_text(json.dumps(dict(given), indent=1))


def check_same(directory: Path, given: Mapping[str, str]) -> None:
    """Refuse to go on with a run with other objects than it began with.

    Raises:
        CheckpointError: A fingerprint is another; says of what.
    """
    file = directory / FILE
    before = json.loads(file.read_text()) if file.exists() else {}
    for what, now in given.items():
        if before.get(what, now) != now:
            raise CheckpointError(
                f"{directory} was started with others: {what} is {before[what]} there, {now} now; give what it began with, or "
                "start a new run"
            )


def _of_optimizer(module: LightningModule) -> str:
    """The class of a module's optimizer, the numbers of its groups, and a digest of a scheduler's first rates."""
    own = copy_of(module)
    found, optimizer = scheduled(own), single_optimizer(own)
    groups = [
        ", ".join(
            f"{key} {plain(value)}"
            for key, value in group.items()
            if key != "params" and value is not None and value is not False
        )
        for group in optimizer.param_groups
    ]
    described = f"{type(optimizer).__qualname__} ({'; '.join(groups)})"
    if found is None:
        return described
    factors: list[tuple[float, ...]] = []
    with contextlib.suppress(ValueError):  # it ends
        factors.extend(itertools.islice(found.factors(), FOLLOWED))
    digested = hashlib.sha256(repr((found.interval, factors)).encode()).hexdigest()[:16]
    return f"{described} with {type(found.scheduler).__qualname__} ({digested})"


def _of_data(data: GivenClients) -> str:
    """Give a digest of all labels that data sets hold, and of the first and last examples of at most 8 parts.

    An example that is another when it is fetched again counts for nothing.
    """
    found = []
    parts = [(f"{name}/{split}", part) for name, client in data.clients.items() for split, part in parts_of(client)]
    parts += [(f"test/{name}", part) for name, part in data.test_sets.items()]
    every = -(-len(parts) // FETCHED)
    for number, (name, part) in enumerate(parts):
        labels = stored_labels(part)
        if hasattr(labels, "shape"):
            found.append((name, digest(labels)))
        if number % every == 0:
            examples = [(fetched(part, place), fetched(part, place)) for place in {0: None, len(part) - 1: None}]
            found += [(name, once) for once, again in examples if once == again]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]
