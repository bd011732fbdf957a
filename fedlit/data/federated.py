"""The data of a federation: the records of a source, split by patient and divided among clients by a partition."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from fedlit.core.errors import DataError
from fedlit.core.ranges import Count, Within
from fedlit.core.system.argument_types import Checked
from fedlit.data.clients import check_clients, check_patients, parts_of
from fedlit.data.records import SPLITS, LeftOut, Records, check_records, hidden_labels, listed
from fedlit.data.sampler import Sampler

if TYPE_CHECKING:
    # Reading labels needs no PyTorch, whose import takes seconds, and data sets from Python need no pandas. So both are
    # imported where they are used.
    import pandas as pd
    from torch import nn
    from torchvision.transforms import v2

    from fedlit.core.examples import MapDataset
    from fedlit.core.messages import ClientData
    from fedlit.data.partition import Partition
    from fedlit.data.pictures.images import LabelledImages
    from fedlit.data.pictures.store import ImageStore
    from fedlit.data.schemes import LabelScheme

POOLED = "pooled"
"""Name of the single client of pooled data."""


class FederatedDataModule(Checked):
    """The records of a source, split by patient and divided among clients.

    Patients are first split into training, validation and test; official splits of the source are kept. The partition
    then gives every record to a client. So each client can have a part of every split, and no patient is in two splits.
    Afterwards, a source may drop records with ``keep()``.

    A new source implements ``records()``. A source that has no image files overrides ``setup()`` instead, and fills
    ``clients`` with ``ClientData`` of any map-style data sets. Keep an argument of that name as ``self._clients``, from
    which ``fedlit.fit`` writes the configuration. ``fedlit.testing.check_data_module`` checks either kind of source.

    Args:
        partition: The rule that gives each record to a client; not needed by a source with a setup() of its own.
        scheme: The rule for the classes that each client labels; by default those that its source labels.
        missing_classes: Training labels of classes that a client does not label: ``ignore`` (NaN, no loss) or
            ``negative`` (0, the vanilla method of Kulkarni et al., arXiv:2301.06683). Validation ignores these classes.
        pooled: Give the images of all clients, with the labels that each client has, to one client named ``pooled``.
            This is the centralised method.
        batch_size: Number of images in a training batch of one client, at least 1.
        eval_batch_size: Number of images in a batch of validation, test and prediction, at least 1.
        image_size: Height and width of the images in pixels, at least 8.
        in_chans: Number of channels of the images: 1 is grey, 3 repeats grey images for weights that expect RGB.
        augment: Augmentation of training images: true for the default of the source (``XrayAugmentation`` for X-rays,
            ``FlipCropAugmentation`` for photographs), false for no augmentation, or a list of transforms of
            torchvision.transforms.v2, which are applied in order to one float image in [0, 1].
        split: Fractions of patients for training, validation and test, which sum to 1. If the source has an official
            train_val list, only the ratio of the first two is used. If it has official train, val and test lists, the
            fractions are not used.
        seed: Seed of the patient split and of the partition.
        cache_dir: Folder of the decoded images; by default $XDG_CACHE_HOME/fedlit or ~/.cache/fedlit.
        mean: Mean that is subtracted from the pixels in [0, 1]: one value, or one for each channel.
        std: Standard deviation by which the pixels are divided after that: one value, or one for each channel, above 0.
        device: Place of the decoded images. ``auto`` copies them once to the GPU that trains if they fit into 60% of
            its free memory. ``cpu`` leaves them in a memory map on disk. ``cuda`` is like ``auto``, but raises an error
            if the data do not fit on a GPU. Augmentation and normalisation run on the device that trains. The results
            do not depend on it.
        sampler: Sampler of training batches: ``{balance: classes}`` gives all classes of a client an equal share of
            every batch, and ``{positives: 0.2}``, for data of one class, a fixed share of positives; see
            ``fedlit.data.sampler.Sampler``. By default every image is equally likely.
        same_person: Rule for patient ids. ``spellings`` treats ids as one patient if they are equal as numbers, or
            differ only in blanks, case or a dash, and logs it. With ``exact``, ids such as 3.1 and 3.10 are two
            patients.

    Attributes:
        drawn: Identifiers of the generators of synthetic images; empty for real images. Two synthetic sources without a
            common generator are not searched for copies of each other's images.
        photographs: True for ``FlipCropAugmentation`` by default, false for ``XrayAugmentation``.
    """

    mistake = DataError

    drawn: frozenset = frozenset()
    photographs: bool = False

    def __init__(
        self,
        partition: Partition | None = None,
        scheme: LabelScheme | None = None,
        missing_classes: Literal["ignore", "negative"] = "ignore",
        pooled: bool = False,
        batch_size: Count = 32,
        eval_batch_size: Count = 128,
        image_size: Annotated[int, Within("[8, inf)")] = 224,
        in_chans: Count = 1,
        augment: bool | list[v2.Transform] = True,
        split: tuple[float, float, float] = (0.7, 0.1, 0.2),
        seed: int = 0,
        cache_dir: str | None = None,
        mean: float | list[float] = 0.449,
        std: float | list[float] = 0.226,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        same_person: Literal["spellings", "exact"] = "spellings",
        sampler: Sampler | None = None,
    ):
        split = tuple(split)  # type: ignore[assignment]  # a YAML has a list
        if len(split) != 3 or min(split) < 0 or split[0] == 0 or abs(sum(split) - 1) > 1e-6:
            raise DataError(
                "data.split: expected fractions of train, validation and test that sum to 1, train above 0, found "
                f"{list(split)} with sum {sum(split):g}"
            )
        self.partition, self.scheme, self.missing_classes, self.pooled = partition, scheme, missing_classes, pooled
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.image_size, self.in_chans, self.mean, self.std = image_size, in_chans, mean, std
        self.augment, self.split, self.seed, self.cache_dir = augment, split, seed, cache_dir
        self.device, self.same_person, self.sampler = device, same_person, sampler
        self.clients: dict[str, ClientData] = {}
        self.test_sets: dict[str, MapDataset] = {}
        self.assignment: pd.DataFrame | None = None
        self.schemes: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self.left_out: list[LeftOut] = []
        self._records: Records | None = None

    def records(self) -> Records:
        """Read the source and decode its images into the cache; a subclass implements this."""
        raise NotImplementedError(
            f"{type(self).__name__}: expected a data module with records() or setup(), found neither; implement one"
        )

    def keep(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Return a mask of the records to keep, [N] bool, given their final splits and clients; by default all.

        A source that drops records after the partition overrides this. The result may depend only on the arguments of
        this method and of the constructor.
        """
        return np.ones(len(owners), dtype=bool)

    def default_augmentation(self) -> nn.Module:
        """Return the transform for ``augment: true``, which takes a batch of float images [B, C, H, W] in [0, 1]."""
        from fedlit.data.pictures.augmentation import FlipCropAugmentation, XrayAugmentation

        return FlipCropAugmentation() if self.photographs else XrayAugmentation()

    def decode(self, files: Sequence[str | Path]) -> ImageStore:
        """Decode image files, or load them from the cache, for ``records()``.

        The images have the size, channels and cache folder of this module.

        Args:
            files: The image files, in the order of the records.

        Raises:
            FileNotFoundError: Files are missing.
            ValueError: Files cannot be decoded.
        """
        from fedlit.data.pictures.decoding import decode_images

        return decode_images(files, self.image_size, 1 if self.in_chans == 1 else 3, self.cache_dir)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, also before ``setup()``; empty for a source that does not implement ``records()``.

        A source that knows its classes without reading files overrides this, or sets ``self.classes`` in its
        constructor.
        """
        if self._own_classes is not None:
            return self._own_classes
        return self._read().classes if self._has_records() else ()

    @classes.setter
    def classes(self, names: Sequence[str]) -> None:
        from fedlit.core.parts import class_names

        self._own_classes = class_names(f"{type(self).__name__}.classes", names)

    _own_classes: tuple[str, ...] | None = None

    def prepare_data(self) -> None:
        """Decode the images into the cache, once per machine."""
        if self._has_records():
            self._read()

    def setup(self, stage: str | None = None) -> None:
        """Split by patient, give each record to a client and fill ``clients``; a second call changes nothing.

        Raises:
            DataError: The records are inconsistent, a patient is in two official splits, the partition gives a patient
                to two clients without declaring it, or a client has fewer than two training images.
        """
        if self.assignment is not None:
            return
        import pandas as pd

        from fedlit.core.messages import ClientData

        records, owners, kept, hidden = self.divided()
        assert records.splits is not None  # divided() has split them
        owners, splits = owners[kept], records.splits[kept]
        if self.sampler is not None and self.sampler.positives is not None and len(records.classes) != 1:
            raise DataError(
                f"data.sampler: expected data of one class, found {len(records.classes)}; set data.classes to one "
                "class, or data.sampler to {balance: classes}"
            )
        visible = _without(records.labels, hidden)
        trained = visible if self.missing_classes == "ignore" else np.where(hidden, 0, visible).astype(np.float32)
        rows_of = pd.DataFrame({"client": owners, "split": splits}).groupby(["client", "split"]).indices
        for name in sorted(set(owners.tolist())):
            train, val, test = (kept[rows_of.get((name, split), np.empty(0, np.int64))] for split in SPLITS)
            labelled = ~hidden[train].all(axis=0)
            images = self._images(records, train, trained, self._augmentation())
            images.sampler = self.sampler
            self.clients[name] = ClientData(
                name,
                tuple(itertools.compress(records.classes, labelled)),
                images,
                self._images(records, val, visible) if len(val) else None,
                self._images(records, test, records.labels) if len(test) else None,
            )
        self.assignment = pd.DataFrame(
            {"image": records.names[kept], "patient": records.patients[kept], "client": owners, "split": splits}
        )

    def divided(self) -> tuple[Records, np.ndarray, np.ndarray, np.ndarray]:
        """Return the records with their splits, the client of each, the kept rows and a mask of hidden labels, [N, C].

        No image is read.

        Raises:
            ValueError: As in ``setup()``.
        """
        from fedlit.data.splits import split_by_patient

        records, partition = self._read(), self.partition
        if partition is None:
            raise DataError("data.partition: expected a rule that gives images to clients, such as BySite, found none")
        splits = split_by_patient(records, self.split, self.seed)
        records = replace(records, splits=splits)
        owners = np.asarray(partition.assign(records, self.seed)).astype(str)
        check_clients(owners, splits)
        if not partition.shares_patients:
            check_patients(records.patients, owners, type(partition).__name__)
        kept = np.flatnonzero(self.keep(records, owners))
        hidden = self._hidden(records, owners)
        owners = np.full(len(owners), POOLED) if self.pooled else owners
        check_clients(owners[kept], splits[kept])
        self._warn_of_empty_classes(records, _without(records.labels, hidden), kept)
        return records, owners, kept, hidden

    def _hidden(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Return a mask of the labels whose class the client does not label, [N, C] bool, and fill ``schemes``."""
        from pandas import Series

        hidden = hidden_labels(records)
        rows_of = dict(sorted(Series(owners).groupby(owners).indices.items()))
        declared = self.scheme.classes_of(list(rows_of), records.classes, self.seed) if self.scheme else {}
        for name, rows in rows_of.items():
            if name in declared:
                hidden[np.ix_(rows, [label not in declared[name] for label in records.classes])] = True
            here = np.logical_not(hidden[rows].all(axis=0))
            empty = list(itertools.compress(records.classes, here & np.isnan(records.labels[rows]).all(axis=0)))
            if empty:
                raise DataError(
                    f"client {name!r}: expected labels of {listed(empty)}, found none in its {len(rows)} images; "
                    "remove the class from the client's label scheme, or add it to data.unlabelled"
                )
            lost = [label for label in declared.get(name, ()) if not here[records.classes.index(label)]]
            if lost:
                declares = f"data.scheme: client {name!r} declares {listed(lost)}"
                raise DataError(f"{declares}, which its source does not label; remove them")
            self.schemes[name] = tuple(itertools.compress(records.classes, here))
        return hidden

    def save_partition(self, path: str | Path) -> None:
        """Write image, patient, client and split of every kept record to a ``.parquet`` or ``.csv`` file.

        Raises:
            DataError: The path has another suffix, or the data have no records.
        """
        path = Path(path)
        if self.assignment is None:
            raise DataError(f"{type(self).__name__} has no records yet: call setup() first")
        if path.suffix == ".parquet":
            self.assignment.to_parquet(path, index=False)
        elif path.suffix == ".csv":
            self.assignment.to_csv(path, index=False)
        else:
            raise DataError(f"{path}: expected a name that ends in .parquet or .csv")

    def cached(self) -> list[Path]:
        """Return the folders of the decoded images in the cache; an empty list for other data."""
        parts = [part for client in self.clients.values() for _, part in parts_of(client)]
        parts += self.test_sets.values()
        stores = {id(part.store): part.store for part in parts if hasattr(part, "store")}
        return [path for store in stores.values() for path in getattr(store, "paths", [])]

    def save_left_out(self, path: str | Path) -> bool:
        """Write the images that were left out to a CSV file, with files and reasons; return False if there are none."""
        if self.left_out:
            from pandas import DataFrame

            DataFrame(self.left_out).to_csv(path, index=False)
        return bool(self.left_out)

    @property
    def partition_hash(self) -> str:
        """Digest of (image, client, split) as 12 hex digits, independent of the order of the records.

        If ``setup()`` is overridden and there are no records, it is a digest of the names and sizes of the clients.
        """
        if self.assignment is not None:
            columns = (self.assignment[column].tolist() for column in ("image", "client", "split"))
            lines = sorted("\0".join(row) for row in zip(*columns, strict=True))
        else:
            sizes = ((client, part) for client in self.clients.values() for part in parts_of(client))
            lines = sorted(f"{client.name}\0{split}\0{len(data)}" for client, (split, data) in sizes)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    def counts(self) -> pd.DataFrame:
        """Return one row for each client, split and class, in that order.

        The columns are ``client``, ``split``, ``class``, ``images`` (of that client and split), ``positives``,
        ``negatives`` and ``labelled`` (True if the client labels the class). Hidden labels do not count. Counts are NaN
        for data sets without ``labels`` [n, C], and for those whose examples have others.
        """
        from pandas import DataFrame

        from fedlit.core.labels import all_labels

        rows = []
        for client in self.clients.values():
            for split, data in parts_of(client):
                labels = all_labels(data, len(self.classes), fetching=False)
                counts = [
                    [np.nan] * len(self.classes) if labels is None else (labels == y).sum(0).tolist() for y in (1, 0)
                ]
                for name, positives, negatives in zip(self.classes, *counts, strict=True):
                    rows.append((client.name, split, name, len(data), positives, negatives, name in client.classes))
        columns = ["client", "split", "class", "images", "positives", "negatives", "labelled"]
        return DataFrame(rows, columns=columns)

    def drawn_images(self) -> set[str] | None:
        """Return the names of images whose split was drawn at random; None if the data have no records."""
        return None if self.assignment is None else self._read().drawn_names()

    def _has_records(self) -> bool:
        return type(self).records is not FederatedDataModule.records

    def _read(self) -> Records:
        if self._records is None:
            self._records = check_records(self.records(), self.same_person == "exact")
        return self._records

    def _augmentation(self) -> nn.Module | None:
        if not self.augment:
            return None
        if self.augment is True:
            return self.default_augmentation()
        from torchvision.transforms import v2

        from fedlit.data.pictures.augmentation import PerImage

        return PerImage(v2.Compose(self.augment))

    def _images(
        self, records: Records, rows: np.ndarray, labels: np.ndarray, augment: nn.Module | None = None
    ) -> LabelledImages:
        from fedlit.data.pictures.images import LabelledImages

        names, sites, patients = records.names[rows], records.sites[rows], records.patients[rows]
        groups = {name: values[rows] for name, values in records.groups.items()}
        looks: dict[str, Any] = {"in_chans": self.in_chans, "augment": augment, "mean": self.mean, "std": self.std}
        rows_of: dict[str, Any] = {"sites": sites, "patients": patients, "groups": groups}
        return LabelledImages(records.store, rows, labels[rows], names, **rows_of, **looks)

    def _warn_of_empty_classes(self, records: Records, visible: np.ndarray, kept: np.ndarray) -> None:
        anywhere = (records.labels[kept] == 1).sum(axis=0)
        train = np.asarray(records.splits)[kept] == "train"
        trained = (visible[kept][train] == 1).sum(axis=0)
        labelled = ~np.isnan(records.labels[kept]).all(axis=0)  # a source need not label every class of a federation
        absent = list(itertools.compress(records.classes, (anywhere == 0) & labelled))
        unseen = [
            f"{label} ({total} elsewhere)"
            for label, total, seen in zip(records.classes, anywhere, trained, strict=True)
            if seen == 0 < total
        ]
        for names, what in (
            (absent, "any positive image: {}; their AUROC is undefined"),
            (unseen, "a positive training image at any client: {}; they cannot be learned"),
        ):
            if names:
                warnings.warn(f"classes without {what.format(listed(names, 20))}", stacklevel=4)


def _without(labels: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    return np.where(hidden, np.nan, labels).astype(np.float32)
