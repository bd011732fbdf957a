"""Several data sets as one federation: an organisation each, under one union of classes."""

import hashlib
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes
from fedlit.data.partition import ByOrganisation, Partition, split_by_patient
from fedlit.data.records import Records, hidden_labels, listed


class JoinedStore:
    """The pictures of several stores, one after the other; all have one shape.

    Args:
        stores: image stores.
    """

    def __init__(self, stores: Sequence):
        shapes = {store.shape[1:] for store in stores}
        if len(shapes) != 1:
            raise ValueError(f"expected pictures of one shape, found {', '.join(map(str, sorted(shapes)))}")
        self.stores = list(stores)
        self.starts = np.cumsum([0, *(len(store) for store in stores)])
        names = "\n".join(store.path.name for store in stores)
        self.path = stores[0].path.parent / f"joined-{hashlib.sha256(names.encode()).hexdigest()[:24]}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[N, channels, height, width]."""
        return (len(self), *self.stores[0].shape[1:])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, indices: int | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """A copy of the pictures: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        rows = np.asarray(indices)
        wanted = np.atleast_1d(rows)
        of = np.searchsorted(self.starts, wanted, side="right") - 1
        out = torch.empty(len(wanted), *self.shape[1:], dtype=torch.uint8)
        for store in np.unique(of).tolist():
            here = np.flatnonzero(of == store)
            out[torch.from_numpy(here)] = self.stores[store][wanted[here] - self.starts[store]]
        return out if rows.ndim else out[0]


class Organisations(FederatedDataModule):
    """Several data sets together, each an organisation; by default each is a client.

    The federation's classes are the union of what the organisations label, by exact name, in alphabetical order:
    have chest X-ray data sets speak one language with `names: harmonised`. An organisation's patients are divided by
    themselves, or by the data set's official split where it is asked to keep one. Which name comes from which label is
    saved with the run (`classes.csv`).

    Args:
        sources: Organisation, and its data; image size, channels and cache are those given here.
        external: Test sets that no client has: name, and data, all of whose images are used.
        classes: `union`, `shared` (only what all organisations label), or a list of classes, in its order.
        partition: Which client a record belongs to; by default each organisation is one.
        duplicates: What happens to pictures that are in two organisations, or in one and an external test set, which
            leaks patients: `refuse`, or `allow` with a warning.
        **kwargs: Further arguments of FederatedDataModule.
    """

    def __init__(
        self,
        sources: dict[str, FederatedDataModule],
        external: dict[str, FederatedDataModule] | None = None,
        classes: Literal["union", "shared"] | list[str] = "union",
        partition: Partition | None = None,
        duplicates: Literal["refuse", "allow"] = "refuse",
        **kwargs,
    ):
        super().__init__(ByOrganisation() if partition is None else partition, **kwargs)
        if not sources:
            raise ValueError("data.sources: expected at least one organisation, found none")
        # In the order of names: how a YAML orders them must not change the rows, and so the batches, of mixed clients.
        self.sources, self.external = dict(sorted(sources.items())), dict(sorted((external or {}).items()))
        self.duplicates = duplicates
        clash = [name for name in self.external if name in sources]
        if clash:
            raise ValueError(f"data.external: {clash[0]!r} is an organisation too; give the test set another name")
        for source in (*sources.values(), *self.external.values()):
            source.image_size, source.cache_dir, source.in_chans = self.image_size, self.cache_dir, self.in_chans
        self._classes = self._chosen(classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._classes

    def default_augmentation(self) -> nn.Module:
        """That of the organisation whose name comes first in the alphabet."""
        return next(iter(self.sources.values())).default_augmentation()

    def records(self) -> Records:
        """Reads all organisations, each under its name, and the external test sets for what they share with them.

        Raises:
            ValueError: A picture is in two organisations, or in one and an external test set.
        """
        everything = self.sources | self.external
        read = {name: source._read() for name, source in everything.items()}
        self.notes = [f"{name}: {note}" for name, source in everything.items() for note in source.notes]
        self._refuse_duplicates(read)
        found = {name: read[name] for name in self.sources}
        joined = [self._under(name, records) for name, records in found.items()]
        return Records(
            store=JoinedStore([r.store for r in joined]),
            names=np.concatenate([r.names for r in joined]),
            labels=np.concatenate([r.labels for r in joined]),
            classes=self.classes,
            patients=np.concatenate([r.patients for r in joined]),
            sites=np.concatenate([r.sites for r in joined]),
            site_classes={
                name: tuple(c for c in self.classes if c in records.classes) for name, records in found.items()
            },
            splits=np.concatenate([split_by_patient(r, self.split, self.seed) for r in joined]),
            table=pd.concat([r.table for r in joined], ignore_index=True),
        )

    def setup(self, stage: str | None = None) -> None:
        """As of any data; and the external test sets."""
        if self.assignment is not None:
            return
        super().setup(stage)
        for name, source in self.external.items():
            records = self._under(name, source._read())
            self.test_sets[name] = self._images(records, np.arange(len(records.names)), records.labels)
            absent = [label for label in source.classes if label not in self.classes]
            if absent:
                self.notes.append(f"{name}: {len(absent)} labels are no class here and left out: {listed(absent, 20)}")

    def _chosen(self, classes: str | list[str]) -> tuple[str, ...]:
        own = {name: source.classes for name, source in self.sources.items()}
        union = sorted({label for labels in own.values() for label in labels})
        self._warn_of_near_names(sorted({*union, *(c for source in self.external.values() for c in source.classes)}))
        if isinstance(classes, list):
            chosen = checked_classes(classes, union)
            without = [name for name, labels in own.items() if not set(labels) & set(chosen)]
            if without:
                raise ValueError(
                    f"data.classes: {listed(without)} labels none of {listed(chosen)}; choose more classes, or leave "
                    "the organisation out"
                )
            return chosen
        if classes == "union":
            return tuple(union)
        if classes != "shared":
            raise ValueError(f"data.classes: expected union, shared or a list of classes, found {classes!r}")
        shared = tuple(label for label in union if all(label in labels for labels in own.values()))
        if not shared:
            raise ValueError(
                "data.classes: no class is labelled by all organisations; have them speak one language with "
                "names: harmonised, or choose union"
            )
        return shared

    def _warn_of_near_names(self, names: Sequence[str]) -> None:
        folded: dict[str, list[str]] = {}
        for label in names:
            folded.setdefault(re.sub(r"[\W_]+", "", label.casefold()), []).append(label)
        for alike in folded.values():
            if len(alike) > 1:
                warnings.warn(
                    f"classes go by exact name, so {' and '.join(map(repr, alike))} are different classes; if they are one, "
                    "set names: harmonised, or name them alike",
                    stacklevel=4,
                )

    def _under(self, organisation: str, records: Records) -> Records:
        """A source's records with the federation's classes, and names and patients that no other source has."""
        labels = np.full((len(records.names), len(self.classes)), np.nan, dtype=np.float32)
        known = np.where(hidden_labels(records), np.nan, records.labels)
        for column, label in enumerate(self.classes):
            if label in records.classes:
                labels[:, column] = known[:, records.classes.index(label)]
        return Records(
            store=records.store,
            names=np.array([f"{organisation}/{name}" for name in records.names]),
            labels=labels,
            classes=self.classes,
            patients=np.array([f"{organisation}/{patient}" for patient in records.patients]),
            sites=np.full(len(records.names), organisation),
            site_classes={},
            splits=records.splits,
            table=records.table.assign(organisation=organisation),
        )

    def _refuse_duplicates(self, found: dict[str, Records]) -> None:
        owner: dict[bytes, tuple[str, str]] = {}
        shared: dict[tuple[str, str], list[str]] = {}
        for name, records in found.items():
            # Pictures that agree in some thousand pixels are the same: hashing all of 200,000 takes half a minute.
            steps = [max(1, size // 32) for size in records.store.shape[2:]]
            for start in range(0, len(records.names), 256):
                rows = np.arange(start, min(start + 256, len(records.names)))
                thinned = records.store[rows][:, :, :: steps[0], :: steps[1]].numpy()
                for row, picture in zip(rows, thinned, strict=True):
                    key = hashlib.blake2b(picture.tobytes(), digest_size=16).digest()
                    first = owner.setdefault(key, (name, str(records.names[row])))
                    if first[0] != name and first[0] in self.sources:
                        shared.setdefault((first[0], name), []).append(f"{first[1]} and {records.names[row]}")
        for (one, other), pairs in shared.items():
            message = (
                f"{len(pairs)} pictures of {one!r} are in {other!r} too, the first are {listed(pairs, 2)}: the same patients "
                "would be trained on at one site and tested at another (RSNA Pneumonia and SIIM Pneumothorax are drawn from "
                "NIH ChestX-ray14, for example)"
            )
            if self.duplicates == "refuse":
                raise ValueError(f"{message}. Leave one of them out, or set data.duplicates to allow.")
            warnings.warn(message, stacklevel=4)


def save_classes(data: FederatedDataModule, path: Path) -> None:
    """One row a client and class that it labels: the class, and the label or labels of the source that it comes from.

    Of clients that are no organisation it says what the class is called at each organisation.
    """
    sources = getattr(data, "sources", {})
    rows = []
    for client, own in data.schemes.items():
        of = {client: sources[client]} if client in sources else sources or {"": data}
        for label in own:
            told = {name: _told(source, label) for name, source in of.items() if label in source.classes}
            alike = len(set(told.values())) == 1
            label_of = next(iter(told.values())) if alike else "; ".join(f"{name}: {t}" for name, t in told.items())
            rows.append({"client": client, "class": label, "label": label_of})
    pd.DataFrame(rows, columns=["client", "class", "label"]).to_csv(path, index=False)


def _told(source: FederatedDataModule, label: str) -> str:
    origin = getattr(source, "origins", {}).get(label)
    return label if origin is None else f" {origin.rule} ".join(origin.labels)
