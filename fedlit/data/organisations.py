"""Several data sets as one federation, each of them an organisation."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from torch import nn

from fedlit.core.errors import DataError
from fedlit.core.system.files import write_csv
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes, letters
from fedlit.data.partition import ByOrganisation, Partition
from fedlit.data.patients import keys
from fedlit.data.pictures.cache import cache_folder
from fedlit.data.pictures.duplicates import Duplicates, notes_of_copies
from fedlit.data.pictures.pixels import Resize
from fedlit.data.pictures.store import StoreView
from fedlit.data.records import SPLITS, Records, hidden_labels, labelled_classes, listed
from fedlit.data.splits import split_by_patient


class Organisations(FederatedDataModule):
    """Several data sets, each of which is an organisation and by default a client.

    By default the classes are all that any organisation labels, in alphabetical order. Classes with different names are
    different classes; ``names: harmonised`` gives chest X-ray data sets common names. The patients of each organisation
    are divided separately, or by the official split of its data set. The file ``classes.csv`` of a run lists the labels
    that each class comes from.

    Args:
        sources: A map from organisations to their data. All sources get the image size, channels and cache of this
            class.
        external: A map from names to data that are used only for the test, with all of their images. No client has
            them.
        classes: The classes: ``union`` for all that any organisation labels, ``shared`` for those that all
            organisations label, or a list of classes, whose order is kept.
        partition: The rule that gives each record to a client; by default each organisation is a client.
        duplicates: Rule for images that are in two organisations, or in one and an external test set, so that a patient
            may be in training and test: ``refuse`` is an error, ``allow`` a warning. It includes recompressed and
            resized copies. Near-duplicates, such as most cropped copies, are a warning with a figure of the pairs.
        patients: ``own`` if the sources have separate patient ids. With ``shared``, an id in several sources is one
            person, who is in one split: the test if any source puts the person there, otherwise validation if any
            source does.
        resize: Resizing of images that are not square, for all sources: ``squeeze`` (the default) or ``pad``.
        **kwargs: Further arguments of FederatedDataModule.
    """

    def __init__(
        self,
        sources: dict[str, FederatedDataModule],
        external: dict[str, FederatedDataModule] | None = None,
        classes: Literal["union", "shared"] | list[str] = "union",
        partition: Partition | None = None,
        duplicates: Duplicates = "refuse",
        patients: Literal["own", "shared"] = "own",
        resize: Resize | None = None,
        **kwargs,
    ):
        # Each source has its own rule for its own ids.
        kwargs = ({} if patients == "shared" else {"same_person": "exact"}) | kwargs
        super().__init__(ByOrganisation() if partition is None else partition, **kwargs)
        if not sources:
            raise DataError("data.sources: expected at least one organisation, found none")
        # Sorted by name, so that their order in a YAML does not change the rows, and so the batches, of mixed clients.
        self.sources, self.external = dict(sorted(sources.items())), dict(sorted((external or {}).items()))
        self.duplicates, self.patients = duplicates, patients
        clash = [name for name in self.external if name in sources]
        if clash:
            raise DataError(f"data.external: {clash[0]!r} is an organisation too; rename it")
        self.resize: Resize = resize or "squeeze"
        for name, source in (*sources.items(), *self.external.items()):
            self._check_resize(name, source)
        self._pass_on()
        self.classes = self._resolve_classes(classes)

    def _pass_on(self) -> None:
        """Give all data sets the same looks; one that joins others passes them on when it is read."""
        for source in (self.sources | self.external).values():
            source.image_size, source.cache_dir, source.in_chans = self.image_size, self.cache_dir, self.in_chans
            if hasattr(source, "resize"):
                source.resize = self.resize

    def _check_resize(self, name: str, source: FederatedDataModule) -> None:
        """Check that an organisation can resize as all others do: an exported model knows one way."""
        resize = getattr(source, "resize", None)
        if resize is None and self.resize == "pad":
            raise DataError(
                f"data.resize: {name!r} ({type(source).__name__}) has no files that could be padded; remove resize"
            )
        if resize == "pad" and self.resize != "pad":
            raise DataError(f"data.resize: {name!r} has its own resize: pad; set data.init_args.resize: pad for all")

    def default_augmentation(self) -> nn.Module:
        """Return the default augmentation of the organisation whose name comes first in the alphabet."""
        return next(iter(self.sources.values())).default_augmentation()

    def records(self) -> Records:
        """Read all organisations, and compare their images with each other and with the external test sets.

        Raises:
            ValueError: An image is in two organisations, or in one and an external test set.
        """
        self._pass_on()
        everything = self.sources | self.external
        read = {name: source._read() for name, source in everything.items()}
        self.notes = [f"{name}: {note}" for name, source in everything.items() for note in source.notes]
        self.left_out = [
            replace(o, image=f"{name}/{o.image}") for name, source in everything.items() for o in source.left_out
        ]
        self._refuse_duplicates(read)
        joined = [self._under(name, read[name]) for name in self.sources]
        splits = np.concatenate([split_by_patient(r, self.split, self.seed) for r in joined])
        patients = np.concatenate([r.patients for r in joined])
        groups = dict.fromkeys(name for r in joined for name in r.groups)
        for name in groups:
            if without := [of for of, r in zip(self.sources, joined, strict=True) if name not in r.groups]:
                self.notes.append(f"group {name!r} is unknown for all images of {listed(without)}")
        return Records(
            store=StoreView([r.store for r in joined]),
            names=np.concatenate([r.names for r in joined]),
            labels=np.concatenate([r.labels for r in joined]),
            classes=self.classes,
            patients=patients,
            sites=np.concatenate([r.sites for r in joined]),
            site_classes={
                name: tuple(c for c in self.classes if c in labelled_classes(read[name])) for name in self.sources
            },
            splits=self._one_split(patients, splits) if self.patients == "shared" else splits,
            table=pd.concat([r.table for r in joined], ignore_index=True),
            drawn=np.concatenate([np.isin(r.names, list(r.drawn_names())) for r in joined]),
            groups={
                name: np.concatenate([r.groups.get(name, np.full(len(r.names), "")) for r in joined]) for name in groups
            },
        )

    def _one_split(self, patients: np.ndarray, splits: np.ndarray) -> np.ndarray:
        """Return splits, [N] str, in which a person of several splits is in the last of train, validation and test."""
        rank = pd.Series(splits).map(SPLITS.index)
        people = patients if self.same_person == "exact" else keys(patients)
        one = np.array(SPLITS)[rank.groupby(people).transform("max")]
        if moved := len(np.unique(people[one != splits])):
            self.notes.append(
                f"{moved} patients are in several sources and were divided differently: each is now in one split"
            )
        return one

    def keep(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Return a mask of the records that the organisations' sources keep, [N] bool."""
        masks, start, splits = [], 0, np.asarray(records.splits)
        for source in self.sources.values():
            unsplit = source._read()
            rows = slice(start, start + len(unsplit.names))
            masks.append(source.keep(replace(unsplit, splits=splits[rows]), owners[rows]))
            start = rows.stop
        return np.concatenate(masks)

    def setup(self, stage: str | None = None) -> None:
        """Set up the clients, and the external test sets."""
        if self.assignment is not None:
            return
        super().setup(stage)
        for name, source in self.external.items():
            unsplit = source._read()
            records, tests = self._under(name, unsplit), np.full(len(unsplit.names), "test")
            kept = np.flatnonzero(source.keep(replace(unsplit, splits=tests), np.full(len(tests), name)))
            self.test_sets[name] = self._images(records, kept, records.labels)
            absent = [label for label in source.classes if label not in self.classes]
            if absent:
                self.notes.append(
                    f"{name}: {len(absent)} labels are not among the classes and left out: {listed(absent, 20)}"
                )

    def _resolve_classes(self, classes: str | list[str]) -> tuple[str, ...]:
        labels_of = {name: source.classes for name, source in self.sources.items()}
        union = sorted({label for labels in labels_of.values() for label in labels})
        self._warn_of_similar_names(sorted({*union, *(c for source in self.external.values() for c in source.classes)}))
        if isinstance(classes, list):
            names = checked_classes(classes, union)
            without = [name for name, labels in labels_of.items() if not set(labels) & set(names)]
            if without:
                raise DataError(
                    f"data.classes: {listed(without)} labels none of {listed(names)}; add a class, or remove "
                    "the organisation"
                )
            return names
        if classes == "union":
            return tuple(union)
        if shared := tuple(sorted(set(union).intersection(*labels_of.values()))):
            return shared
        raise DataError(
            "data.classes: all organisations share no class; set names: harmonised for common names, or choose union"
        )

    def _warn_of_similar_names(self, names: Sequence[str]) -> None:
        folded: dict[str, list[str]] = {}
        for label in names:
            folded.setdefault(letters(label), []).append(label)
        for similar in folded.values():
            if len(similar) > 1:
                warnings.warn(
                    f"classes with different names are different, so {' and '.join(map(repr, similar))} are different "
                    "classes; if they are the same class, set names: harmonised, or rename one",
                    stacklevel=4,
                )

    def _under(self, organisation: str, records: Records) -> Records:
        """Return the records of a source with the federation's classes and unique names of images and patients."""
        prefix = "" if self.patients == "shared" else f"{organisation}/"
        visible = pd.DataFrame(records.labels, columns=list(records.classes)).mask(hidden_labels(records))
        return replace(
            records,
            names=np.array([f"{organisation}/{name}" for name in records.names]),
            labels=visible.reindex(columns=list(self.classes)).to_numpy(dtype=np.float32),
            classes=self.classes,
            patients=np.array([f"{prefix}{patient}" for patient in records.patients]),
            sites=np.full(len(records.names), organisation),
            site_classes={},
            table=records.table.assign(organisation=organisation),
        )

    def _refuse_duplicates(self, read: dict[str, Records]) -> None:
        """Search each pair of sources for copies of images, and add notes."""
        everything = self.sources | self.external
        for one, other in combinations(read, 2):
            if one not in self.sources:  # no client trains on either
                continue
            drawn, others = everything[one].drawn, everything[other].drawn
            if not drawn or not others or drawn & others:
                folder, both = cache_folder(self.cache_dir), (read[one], read[other])
                self.notes += notes_of_copies(folder, self.duplicates, (one, other), both)


def save_classes(data: FederatedDataModule, path: Path) -> None:
    """Write the classes of each client to a CSV file, with the labels of the source that they come from.

    For a client that is not an organisation, the file names the labels of each organisation.
    """
    sources = getattr(data, "sources", {})
    rows = []
    for client, classes in data.schemes.items():
        origins = {client: sources[client]} if client in sources else sources or {"": data}
        for name in classes:
            labels = {site: _labels_of(source, name) for site, source in origins.items() if name in source.classes}
            equal = len(set(labels.values())) == 1
            text = next(iter(labels.values())) if equal else "; ".join(f"{site}: {x}" for site, x in labels.items())
            rows.append((client, name, text))
    write_csv(pd.DataFrame(rows, columns=["client", "class", "label"]), path)


def _labels_of(source: FederatedDataModule, name: str) -> str:
    origin = getattr(source, "origins", {}).get(name)
    return name if origin is None else f" {origin.rule} ".join(origin.labels)
