"""The data of a federation: records of a source, split by patient and divided into clients by a partition."""

import hashlib
import re
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

from fedlit.data.augmentation import PerImage, XrayAugmentation
from fedlit.data.images import LabelledImages
from fedlit.data.partition import Partition, split_by_patient
from fedlit.data.records import SPLITS, Records, check_records, hidden_labels, listed
from fedlit.data.schemes import LabelScheme

POOLED = "pooled"
"""The one client of pooled data."""


@dataclass
class ClientData:
    """One client's data.

    Attributes:
        name: The client.
        classes: What it labels, in the order of the federation's classes.
        train: Training part; items are (image, labels [C]) with NaN for classes that the client does not
            label.
        val: Validation part, NaN as above; None where the client has none.
        test: Test part with the full truth; None where the client has none.
    """

    name: str
    classes: tuple[str, ...]
    train: Dataset
    val: Dataset | None = None
    test: Dataset | None = None


class FederatedDataModule(LightningDataModule):
    """The data of a federation: a source's records, divided into clients.

    Patients are split into train, validation and test first (official splits win where the source has them),
    then the partition gives every record to a client. So each client has a part of every split and no patient
    is in two splits. A source may drop records after that, see `keep()`.

    A source of your own implements `records()`. One that has no such records overrides `setup()` instead and
    fills `clients` with `ClientData` of any map-style data sets.

    Args:
        partition: Which client a record belongs to.
        scheme: Which classes each client labels; by default those that its source labels.
        missing_classes: Training labels of classes that a client does not label: `ignore` (NaN, no loss), or
            `negative` (0, the vanilla method that surgical aggregation is compared with). Validation ignores them.
        pooled: Bring all clients' images, with the labels that each has, to one client of that name: the centralised
            method.
        batch_size: Images in a training batch of one client.
        eval_batch_size: Images in a batch where nothing is trained.
        image_size: Height and width of the images in pixels.
        in_chans: Channels of the images: 1 is grey, 3 repeats the grey for weights that expect RGB.
        augment: Augmentation of training images: true for the source's default (`XrayAugmentation` unless it has
            another), false for none, or a list of transforms (torchvision.transforms.v2), applied in order to
            one float image in [0, 1].
        split: Fractions of train, validation and test, by patient; they sum to 1. With an official train_val
            list only the first two matter, with an official train, val and test none.
        seed: Seed of the patient split and of the partition.
        cache_dir: Folder of the decoded images; by default $XDG_CACHE_HOME/fedlit or ~/.cache/fedlit.
        mean: Mean of the pixels in [0, 1] for normalisation, one value or one a channel.
        std: Standard deviation of the pixels for normalisation, one value or one a channel.
    """

    def __init__(
        self,
        partition: Partition,
        scheme: LabelScheme | None = None,
        missing_classes: Literal["ignore", "negative"] = "ignore",
        pooled: bool = False,
        batch_size: int = 32,
        eval_batch_size: int = 128,
        image_size: int = 224,
        in_chans: int = 1,
        augment: bool | list[v2.Transform] = True,
        split: tuple[float, float, float] = (0.7, 0.1, 0.2),
        seed: int = 0,
        cache_dir: str | None = None,
        mean: float | list[float] = 0.449,
        std: float | list[float] = 0.226,
    ):
        super().__init__()
        for key, value in (
            ("batch_size", batch_size),
            ("eval_batch_size", eval_batch_size),
            ("in_chans", in_chans),
        ):
            if value < 1:
                raise ValueError(f"data.{key}: expected at least 1, found {value}")
        if image_size < 8:
            raise ValueError(f"data.image_size: expected at least 8 pixels, found {image_size}")
        split = tuple(split)
        if len(split) != 3 or min(split) < 0 or split[0] == 0 or abs(sum(split) - 1) > 1e-6:
            raise ValueError(
                "data.split: expected fractions of train, validation and test that sum to 1, train above 0, "
                f"found {list(split)} with sum {sum(split):g}"
            )
        if missing_classes not in ("ignore", "negative"):
            raise ValueError(f"data.missing_classes: expected ignore or negative, found {missing_classes!r}")
        self.partition = partition
        self.scheme = scheme
        self.missing_classes = missing_classes
        self.pooled = pooled
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.image_size = image_size
        self.in_chans = in_chans
        self.augment = augment
        self.split = split
        self.seed = seed
        self.cache_dir = cache_dir
        self.mean = mean
        self.std = std
        self.clients: dict[str, ClientData] = {}
        self.test_sets: dict[str, Dataset] = {}
        self.assignment: pd.DataFrame | None = None
        self.schemes: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self._records: Records | None = None

    def records(self) -> Records:
        """Reads the source and decodes its images into the cache; a subclass implements it."""
        raise NotImplementedError(
            f"{type(self).__name__} implements neither records() nor setup(); one must say what the data is"
        )

    def keep(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Which records the federation has, [N] bool, given their final splits and clients; by default all.

        A source that makes its data scarcer after the partition overrides this. It is a pure function of its
        arguments and of the constructor's.
        """
        return np.ones(len(owners), dtype=bool)

    def default_augmentation(self) -> nn.Module:
        """What `augment: true` means: a transform of a batch of float images [B, C, H, W] in [0, 1]."""
        return XrayAugmentation()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, known before `setup()`; none where there are no records to have some.

        A source that knows them without reading its files overrides this.
        """
        return self._read().classes if self._has_records() else ()

    def prepare_data(self) -> None:
        """Decodes the images into the cache, once per machine."""
        if self._has_records():
            self._read()

    def setup(self, stage: str | None = None) -> None:
        """Splits by patient, gives each record to a client, fills `clients`; a second call changes nothing.

        Raises:
            ValueError: The records contradict themselves, patients are in two splits, or a client has not at
                least two training images.
        """
        if self.assignment is not None:
            return
        records = self._read()
        splits = split_by_patient(records, self.split, self.seed)
        records = replace(records, splits=splits)
        owners = np.asarray(self.partition.assign(records, self.seed)).astype(str)
        check_clients(owners, splits)
        kept = np.flatnonzero(self.keep(records, owners))
        hidden = self._hidden(records, owners)
        owners, splits = owners[kept], splits[kept]
        if self.pooled:
            owners = np.full(len(owners), POOLED)
        names = check_clients(owners, splits)
        visible = np.where(hidden, np.nan, records.labels).astype(np.float32)
        trained = visible if self.missing_classes == "ignore" else np.where(hidden, 0, visible).astype(np.float32)
        self._warn_of_empty_classes(records, visible, kept)
        rows_of = pd.DataFrame({"client": owners, "split": splits}).groupby(["client", "split"]).indices
        for name in names:
            train, val, test = (kept[rows_of.get((name, split), np.empty(0, np.int64))] for split in SPLITS)
            labelled = ~hidden[train].all(axis=0)
            self.clients[name] = ClientData(
                name,
                tuple(label for label, own in zip(records.classes, labelled, strict=True) if own),
                self._images(records, train, trained, self._augmentation()),
                self._images(records, val, visible) if len(val) else None,
                self._images(records, test, records.labels) if len(test) else None,
            )
        self.assignment = pd.DataFrame(
            {"image": records.names[kept], "patient": records.patients[kept], "client": owners, "split": splits}
        )

    def _hidden(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Which labels [N, C] are not there because the image's client does not label the class; fills `schemes`."""
        hidden = hidden_labels(records)
        names = sorted(set(owners.tolist()))
        declared = self.scheme.classes_of(names, records.classes, self.seed) if self.scheme else {}
        for name in names:
            rows = np.flatnonzero(owners == name)
            if name in declared:
                hidden[np.ix_(rows, [label not in declared[name] for label in records.classes])] = True
            here = ~hidden[rows].all(axis=0)
            empty = [c for c, own in enumerate(here) if own and np.isnan(records.labels[rows, c]).all()]
            if empty:
                raise ValueError(
                    f"client {name!r} labels {listed([records.classes[c] for c in empty])}, but none of its "
                    f"{len(rows)} images has such a label: leave the class out of its label scheme"
                )
            lost = [label for label in declared.get(name, ()) if not here[records.classes.index(label)]]
            if lost:
                raise ValueError(
                    f"data.scheme: client {name!r} declares {listed(lost)}, which its source does not label"
                )
            self.schemes[name] = tuple(label for label, own in zip(records.classes, here, strict=True) if own)
        return hidden

    def save_partition(self, path: str | Path) -> None:
        """Writes image, patient, client and split of every record that was kept to a `.parquet` or `.csv` file.

        Raises:
            ValueError: Another suffix, or data without records.
        """
        path = Path(path)
        if self.assignment is None:
            raise ValueError(f"{type(self).__name__} has no records to save: call setup() first")
        if path.suffix == ".parquet":
            self.assignment.to_parquet(path, index=False)
        elif path.suffix == ".csv":
            self.assignment.to_csv(path, index=False)
        else:
            raise ValueError(f"{path}: expected a name that ends in .parquet or .csv")

    @property
    def partition_hash(self) -> str:
        """12 hex digits over (image, client, split), whatever the order of the records.

        Where `setup()` was overridden and there are no records: over the clients' names and sizes.
        """
        if self.assignment is not None:
            rows = self.assignment[["image", "client", "split"]].itertuples(index=False, name=None)
        else:
            rows = (
                (client.name, split, str(len(data)))
                for client in self.clients.values()
                for split, data in parts_of(client)
            )
        lines = sorted("\0".join(row) for row in rows)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    def counts(self) -> pd.DataFrame:
        """One row for each client, split and class, in that order.

        Columns: `client`, `split`, `class`, `images` (of that client and split), `positives`, `negatives` and
        `labelled` (bool: whether the client labels the class). Counts are of what the client sees; data sets
        that have no `labels` [n, C] count as NaN.
        """
        rows = []
        for client in self.clients.values():
            for split, data in parts_of(client):
                labels = getattr(data, "labels", None)
                for column, label in enumerate(self.classes):
                    rows.append(
                        {
                            "client": client.name,
                            "split": split,
                            "class": label,
                            "images": len(data),
                            "positives": np.nan if labels is None else int((labels[:, column] == 1).sum()),
                            "negatives": np.nan if labels is None else int((labels[:, column] == 0).sum()),
                            "labelled": label in client.classes,
                        }
                    )
        columns = ["client", "split", "class", "images", "positives", "negatives", "labelled"]
        return pd.DataFrame(rows, columns=columns)

    def _has_records(self) -> bool:
        return type(self).records is not FederatedDataModule.records

    def _read(self) -> Records:
        if self._records is None:
            records = self.records()
            check_records(records)
            self._records = records
        return self._records

    def _augmentation(self) -> nn.Module | None:
        if isinstance(self.augment, bool):
            return self.default_augmentation() if self.augment else None
        return PerImage(v2.Compose(self.augment)) if self.augment else None

    def _images(
        self, records: Records, rows: np.ndarray, labels: np.ndarray, augment: nn.Module | None = None
    ) -> LabelledImages:
        return LabelledImages(
            records.store,
            rows,
            labels[rows],
            records.names[rows],
            self.in_chans,
            augment,
            self.mean,
            self.std,
            records.sites[rows],
            records.patients[rows],
        )

    def _warn_of_empty_classes(self, records: Records, visible: np.ndarray, kept: np.ndarray) -> None:
        anywhere = (records.labels[kept] == 1).sum(axis=0)
        trained = (visible[kept][records.splits[kept] == "train"] == 1).sum(axis=0)
        absent = [label for label, total in zip(records.classes, anywhere, strict=True) if total == 0]
        unseen = [
            f"{label} ({total} elsewhere)"
            for label, total, seen in zip(records.classes, anywhere, trained, strict=True)
            if seen == 0 < total
        ]
        if absent:
            warnings.warn(
                f"classes without any positive image: {listed(absent, 20)}; their AUROC is undefined",
                stacklevel=3,
            )
        if unseen:
            warnings.warn(
                f"classes without a positive image that a client trains on: {listed(unseen, 20)}; "
                "nothing can be learned of them",
                stacklevel=3,
            )


def parts_of(client: ClientData) -> list[tuple[str, Dataset]]:
    """The client's splits that exist, as (split, data set)."""
    parts = zip(SPLITS, (client.train, client.val, client.test), strict=True)
    return [(split, data) for split, data in parts if data is not None]


def check_clients(owners: np.ndarray, splits: np.ndarray) -> list[str]:
    """The clients' names in order.

    Raises:
        ValueError: There is not one client a record, a name is empty, two names are the same as a file name
            or metric key, or a client has not at least two training images.
    """
    if owners.shape != splits.shape:
        raise ValueError(f"partition: expected a client for each of {len(splits)} images, found {list(owners.shape)}")
    names = sorted(set(owners.tolist()))
    seen: dict[str, str] = {}
    for name in names:
        key = re.sub(r"[^\w.\-]+", "_", name.strip()).casefold()
        if not name.strip():
            raise ValueError(f"client names: {int((owners == name).sum())} images have an empty client name")
        if key in seen:
            raise ValueError(
                f"client names {seen[key]!r} and {name!r} are the same in files and metrics: rename one in the source"
            )
        seen[key] = name
    training = Counter(owners[splits == "train"].tolist())
    short = [name for name in names if training[name] < 2]
    if short:
        raise ValueError(
            f"client {short[0]!r}: expected at least 2 training images, found {training[short[0]]} "
            f"({len(short)} of {len(names)} clients are so). Choose fewer clients or another partition, "
            "or remove it."
        )
    return names
