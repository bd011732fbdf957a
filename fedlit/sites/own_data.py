"""What a site has: its clients' data, and what may be told of them."""

import copy
import errno
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.core.errors import ConfigError
from fedlit.core.messages import State
from fedlit.core.system.files import private
from fedlit.data.clients import parts_of
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.images import LabelledImages
from fedlit.federation.examinations import examine_clients
from fedlit.sites.messages import Told
from fedlit.sites.settings import SiteSettings

KEY = "key"
"""File in the folder of states with which fingerprints are made; without it nobody can try what they are of."""

SAMPLE = 16
"""Pictures of each part that a fingerprint looks at, spread over it."""


class Unreadable(ConfigError):
    """The site's files cannot be read or written; names them."""

    public = "its data cannot be read"


class OwnData:
    """The clients of a site, which are read once.

    Args:
        settings: The site's own file.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.settings, self.policy = settings, settings.policy

    @cached_property
    def module(self) -> FederatedDataModule:
        """The site's own clients alone.

        Raises:
            Unreadable: The data cannot be read.
            ConfigError: The share has none of their clients.
        """
        whole = self.settings.data
        try:
            with reading():
                whole.prepare_data()
                whole.setup("fit")
                examine_clients(whole.clients, whole.classes)
        except ValueError as error:  # which may name a cell of a table
            raise error if isinstance(error, Unreadable) else Unreadable(str(error)) from error
        own = self.settings.own(list(whole.clients))
        if not own:
            raise ConfigError(f"share: {self.settings.share} of the {len(whole.clients)} clients of its data is none")
        data = copy.copy(whole)
        data.clients, data.test_sets = {name: whole.clients[name] for name in own}, {}
        return data

    def told(self) -> list[Told]:
        """Tell of each client what the policy allows."""
        return [self._told(name) for name in self.module.clients]

    def organisations(self) -> State:
        """Give the number of the organisation of each image, in the order of :attr:`Told.organisations`."""
        found = {}
        for name, client in self.module.clients.items() if self.policy.leaves.scores else ():
            for part, data in parts_of(client):
                if (sites := getattr(data, "sites", None)) is not None:
                    found[f"organisation/{name}/{part}"] = torch.from_numpy(
                        np.unique(sites, return_inverse=True)[1]
                    ).int()
        return found

    def hidden(self, client: str, part: str) -> list[str]:
        """Name the classes of a part of a client's data that are hidden, as so few images are positive or negative."""
        labels = getattr(dict(parts_of(self.module.clients[client]))[part], "labels", None)
        gone = [] if labels is None else self.policy.hidden(labels)
        return [name for name, few in zip(self.module.classes, gone, strict=False) if few]

    def stand_ins(self, client: str) -> dict[str, float]:
        """Give the share of positives that stands for that of each hidden class in a measuring round; it follows no label.

        It is half the limit, of positives or of negatives, whichever there are few of.
        """
        data, most = self.module.clients[client].train, self.policy.leaves.counts_below / 2
        shares = {}
        for name in self.hidden(client, "train"):
            labels = data.labels[:, self.module.classes.index(name)]
            known = int((~labels.isnan()).sum())
            share = min(most / known, 0.5)
            shares[name] = share if int((labels == 1).sum()) * 2 <= known else 1 - share
        return shares

    def fingerprint(self, client: str) -> str:
        """Return what changes where the labels, the names or the pictures of a client do."""
        made = hmac.new(self._key, digestmod=hashlib.sha256)
        for part, data in parts_of(self.module.clients[client]):
            made.update(f"{part} {len(data)}".encode())
            for piece in _content(data):
                made.update(piece)
        return made.hexdigest()[:32]

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
            raise Unreadable(f"{file} cannot be written: {error.strerror or error}; make room there") from error

    def _told(self, name: str) -> Told:
        data, client = self.module, self.module.clients[name]
        parts = dict(parts_of(client))
        labelled = {part: labels for part, d in parts.items() if (labels := getattr(d, "labels", None)) is not None}
        sites = {part: d.sites for part, d in parts.items() if hasattr(d, "sites") and self.policy.leaves.scores}
        return Told(
            name=name,
            classes=list(client.classes),
            scheme=list(data.schemes[name]) if name in data.schemes else None,
            train=len(client.train),
            val=len(parts["val"]) if "val" in parts else None,
            test=len(parts["test"]) if "test" in parts else None,
            augmented=getattr(client.train, "augment", None) is not None,
            counts={part: self.policy.told(labels) for part, labels in labelled.items()},
            organisations={part: np.unique(found).astype(str).tolist() for part, found in sites.items()},
            data=self.fingerprint(name),
        )


@contextmanager
def reading() -> Iterator[None]:
    """Context manager that says of files which cannot be read that they are the site's data.

    Raises:
        Unreadable: Names the file.
    """
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        why = "its disk is full" if full else f"its data cannot be read: {error.strerror or error}"
        where = f" ({error.filename})" if error.filename else ""
        raise Unreadable(f"{why}{where}; look at data in the site's own file, and at the disk") from error


def _content(data: Dataset) -> Iterator[bytes]:
    labels = getattr(data, "labels", None)
    if isinstance(labels, Tensor):
        yield labels.cpu().numpy().tobytes()
    if isinstance(data, LabelledImages):
        yield "\n".join(map(str, data.names)).encode()
        rows = np.unique(np.linspace(0, len(data) - 1, min(SAMPLE, len(data))).astype(int))
        yield data.take(rows)[0].numpy().tobytes()
