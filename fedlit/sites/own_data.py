"""A site's own file, ``fedlit-site.yaml``, which no job changes, and the data that it describes."""

import copy
import errno
import hashlib
import hmac
import os
import re
import secrets
from argparse import ArgumentError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.labels import all_labels
from fedlit.core.messages import State
from fedlit.core.system import documents
from fedlit.core.system.argument_types import checked
from fedlit.core.system.environment import resolve
from fedlit.core.system.files import private
from fedlit.data.clients import groups_of, parts_of
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.images import LabelledImages
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import Sources, explain, named_errors
from fedlit.experiment.parser import Parser
from fedlit.federation.examinations import examine_clients
from fedlit.sites.messages import ClientInfo
from fedlit.sites.policy import Policy

SHARE = re.compile(r"([1-9]\d*) of ([1-9]\d*)")


@checked
@dataclass
class SiteSettings:
    """Settings of a site: its name, its data, its folder of states, and its policy.

    Args:
        name: Name of the site, different from those of all others.
        data: Any data of fedlit. Its clients are the site's; most have one.
        state: Folder of what the site keeps between rounds. Back it up.
        share: Which of the clients of ``data`` belong to the site, such as ``2 of 3``: the second of every three, in
            their order. By default all. Use it for several sites that try a federation on one machine with one data
            set.
        accelerator: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        policy: What the site allows.

    Raises:
        ConfigError: If a value is not valid.
    """

    name: str
    data: FederatedDataModule
    state: str
    share: str | None = None
    accelerator: str = "auto"
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("name: expected the name of the site, found an empty one")
        match = SHARE.fullmatch(self.share or "1 of 1")
        if match is None or int(match[1]) > int(match[2]):
            raise ConfigError(f"share: expected a share such as 2 of 3, found {self.share!r}")
        self.position, self.sites = int(match[1]) - 1, int(match[2])

    @property
    def folder(self) -> Path:
        """The folder of states, as a path."""
        return Path(self.state)


def read_settings(file: Path) -> SiteSettings:
    """Read the file of a site.

    Raises:
        ConfigError: If it cannot be read or a value is not valid; names the file and the key.
    """
    try:
        return settings_of(resolve(documents.load(file)))
    except (ConfigError, ValueError, OSError) as error:
        raise ConfigError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error


def settings_of(values: Any) -> SiteSettings:
    """Make the settings from the content of a site's file.

    Raises:
        ConfigError: If a value is not valid; names the key.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"expected the keys of a site, found {yaml.safe_dump(values)[:60].strip()!r}")
    parser = _parser()
    try:
        return SiteSettings(**parser.instantiate(parser.parse_object(values)).as_dict())
    except (ArgumentError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(explain(error, Sources(()), parser.get_defaults().as_dict())) from error


@cache
def _parser() -> Parser:
    for axis in ("data", "partitions"):
        shipped(axis)  # importing the classes registers their short names
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(SiteSettings, fail_untyped=True)
    return parser


KEY = "key"
"""File with the key of fingerprints, in the folder of states; without it nobody can test guesses against them."""

SAMPLE = 16
"""Number of decoded images of each part that a fingerprint reads, spread over it."""


class Unreadable(ConfigError):
    """Error of data that cannot be read or written; names the file."""

    public = "its data cannot be read"


class OwnData:
    """Data of a site's clients, which are read once."""

    def __init__(self, settings: SiteSettings) -> None:
        self.settings, self.policy = settings, settings.policy
        self._labels_of: dict[str, dict[str, Tensor]] = {}

    @cached_property
    def module(self) -> FederatedDataModule:
        """The data module with only the site's own clients.

        Raises:
            Unreadable: If the data cannot be read.
            ConfigError: If the site's share has no clients.
        """
        whole = self.settings.data
        try:
            with named_errors(), reading():
                whole.prepare_data()
                whole.setup("fit")
                examine_clients(whole.clients, whole.classes)
        except ValueError as error:  # its text may name a cell of a table
            if isinstance(error, Unreadable):
                raise
            raise Unreadable(str(error)) from error
        names = list(whole.clients)[self.settings.position :: self.settings.sites]
        if not names:
            raise ConfigError(
                f"share: {self.settings.share} leaves none of the {len(whole.clients)} clients of its data; choose "
                f"another share"
            )
        data = copy.copy(whole)
        data.clients, data.test_sets = {name: whole.clients[name] for name in names}, {}
        return data

    def for_run(self, classes: Sequence[str]) -> FederatedDataModule:
        """Return the data with labels of a run's classes, in their order: NaN for those that the site does not name.

        Raises:
            ConfigError: If the run lacks a class of the site, or its data set cannot be given other labels.
        """
        own, data = list(self.module.classes), copy.copy(self.module)
        if own == list(classes):
            return data
        if unknown := [name for name in own if name not in classes]:
            raise ConfigError(f"its class {unknown[0]!r} is not one of the run's: {', '.join(classes)[:500]}")
        data.classes = tuple(classes)
        columns = [classes.index(name) for name in own]
        data.clients = {
            name: replace(client, **{part: _widened(held, columns, len(classes)) for part, held in parts_of(client)})
            for name, client in data.clients.items()
        }
        return data

    def infos(self) -> list[ClientInfo]:
        """Return a report about each client, as far as the policy allows."""
        return [self._info(name) for name in self.module.clients]

    def indices(self) -> State:
        """Return the index of the organisation of each image, and of the group of each test image, see `ClientInfo`."""
        arrays = {}
        for name, client in self.module.clients.items() if self.policy.leaves.scores else ():
            for part, data in parts_of(client):
                if (sites := getattr(data, "sites", None)) is not None:
                    places = np.unique(sites, return_inverse=True)[1]
                    arrays[f"organisation/{name}/{part}"] = torch.from_numpy(places).int()
        for client in self.module.clients:
            for name, groups in self.groups(client).items():
                values = np.unique(groups[groups != ""])
                positions = np.where(groups == "", -1, np.searchsorted(values, groups))
                arrays[f"group/{client}/{name}"] = torch.from_numpy(positions).int()
        return arrays

    def groups(self, client: str) -> dict[str, np.ndarray]:
        """Return the groups of a client's test images as far as they may leave, see :attr:`ClientInfo.groups`.

        They leave only with scores of single images, for the table of predictions; a group that is hidden from all
        images is left out.
        """
        data = self.module.clients[client].test
        if data is None or not self.policy.leaves.scores:
            return {}
        patients = np.asarray(getattr(data, "patients", ())).astype(str)
        if len(patients) != len(data) or not (patients != "").all():
            patients = np.arange(len(data))
        visible = {name: self.policy.visible_groups(np.asarray(of), patients) for name, of in groups_of(data).items()}
        return {name: groups for name, groups in visible.items() if (groups != "").any()}

    def hidden(self, client: str, part: str) -> list[str]:
        """Return the classes of a part of a client's data that are hidden: few images are positive or negative."""
        labels = self._labels(client).get(part)
        gone = [] if labels is None else self.policy.hidden(labels)
        return [name for name, few in zip(self.module.classes, gone, strict=False) if few]

    def stand_ins(self, client: str) -> dict[str, float]:
        """Return the share of positives that a measuring round reports for each hidden class; it depends on no label.

        It is the share that half the limit would have: as positives if positives are few, else as negatives.
        """
        most, shares = self.policy.leaves.counts_below / 2, {}
        for name in self.hidden(client, "train"):
            labels = self._labels(client)["train"][:, self.module.classes.index(name)]
            known = int((~labels.isnan()).sum())
            share = min(most / known, 0.5)
            shares[name] = share if int((labels == 1).sum()) * 2 <= known else 1 - share
        return shares

    def fingerprint(self, client: str) -> str:
        """Return a fingerprint of a client's data, which changes with its labels, patients, names or images."""
        made = hmac.new(self._key, digestmod=hashlib.sha256)
        for part, data in parts_of(self.module.clients[client]):
            made.update(f"{part} {len(data)}".encode())
            for piece in _content(data):
                made.update(piece)
        return made.hexdigest()[:32]

    def _labels(self, client: str) -> dict[str, Tensor]:
        """Return the labels [n, C] of each part of a client's data that has labels of the classes."""
        if client not in self._labels_of:
            self._labels_of[client] = {}
            for part, data in parts_of(self.module.clients[client]):
                with suppress(DataError):
                    self._labels_of[client][part] = all_labels(data, len(self.module.classes))
        return self._labels_of[client]

    @cached_property
    def _key(self) -> bytes:
        file = self.settings.folder / KEY
        try:
            private(file.parent)
            if not file.exists():
                with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                    opened.write(secrets.token_bytes(32))
            return file.read_bytes()
        except OSError as error:
            raise Unreadable(f"{file} cannot be written: {error.strerror or error}; free disk space there") from error

    def _info(self, name: str) -> ClientInfo:
        data, client = self.module, self.module.clients[name]
        parts = dict(parts_of(client))
        sites = {part: d.sites for part, d in parts.items() if hasattr(d, "sites") and self.policy.leaves.scores}
        return ClientInfo(
            name=name,
            classes=list(client.classes),
            scheme=list(data.schemes[name]) if name in data.schemes else None,
            train=len(client.train),
            val=len(parts["val"]) if "val" in parts else None,
            test=len(parts["test"]) if "test" in parts else None,
            augmented=getattr(client.train, "augment", None) is not None,
            counts={part: self.policy.visible_counts(labels) for part, labels in self._labels(name).items()},
            groups={name: np.unique(of[of != ""]).tolist() for name, of in self.groups(name).items()},
            organisations={part: np.unique(names).astype(str).tolist() for part, names in sites.items()},
            data=self.fingerprint(name),
        )


@contextmanager
def reading() -> Iterator[None]:
    """Context manager that turns errors of files into errors of the site's data.

    Raises:
        Unreadable: If a file cannot be read; names the file.
    """
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        why = "its disk is full" if full else f"its data cannot be read: {error.strerror or error}"
        where = f" ({error.filename})" if error.filename else ""
        raise Unreadable(f"{why}{where}; check data in the site's own file, and the disk") from error


def _widened(data: Dataset, columns: Sequence[int], classes: int) -> Dataset:
    """Return a data set whose labels [n, classes] have its own ones in some columns, and NaN in the others."""
    labels = all_labels(data, len(columns))
    wide = torch.full((len(labels), classes), torch.nan, dtype=labels.dtype)
    wide[:, list(columns)] = labels
    other = copy.copy(data)  # with its patients, on which private steps depend
    if type(data) is TensorDataset:
        other.tensors = data.tensors[0], wide
        return other
    if type(data) is LabelledImages:
        other.labels = wide
        return other
    raise ConfigError(
        f"{type(data).__name__}: expected a data set of fedlit for a site that names some of the run's classes; name "
        "all of them, in the run's order, with NaN for labels that are unknown"
    )


def _content(data: Dataset) -> Iterator[bytes]:
    labels = getattr(data, "labels", None)
    if isinstance(labels, Tensor):
        yield labels.cpu().numpy().tobytes()
    yield repr(np.asarray(getattr(data, "patients", ())).astype(str).tolist()).encode()
    if isinstance(data, LabelledImages):
        yield "\n".join(map(str, data.names)).encode()
        rows = np.unique(np.linspace(0, len(data) - 1, min(SAMPLE, len(data))).astype(int))
        yield data.take(rows)[0].numpy().tobytes()
