"""Chest X-ray data sets in the layout of their official downloads: what all readers have in common."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.data.federated import FederatedDataModule
from fedlit.data.images import decode_images
from fedlit.data.labels import UNCERTAIN, Names, Origin, Policy, checked_classes, checked_policy, decided, origins
from fedlit.data.labels import harmonised_names as canonical_names
from fedlit.data.partition import ByPatient, Partition
from fedlit.data.records import Records, listed


@dataclass
class Reading:
    """What a data set's label files say of N images, before any image is opened.

    Attributes:
        files: path of each image; it need not exist.
        names: unique id of each image, [N] str.
        patients: of each image, [N] str.
        labels: [N, L] float32 in {0, 1, `UNCERTAIN`, NaN}, the source's own labels; NaN is a blank.
        source: the label file, for messages.
        splits: the official split of each image, [N] "train", "val", "test" or "train_val"; None where there is none.
        table: the source's own columns, for `ByColumn`.
        notes: what was left out and why, with counts.
    """

    files: list[Path]
    names: np.ndarray
    patients: np.ndarray
    labels: np.ndarray
    source: Path
    splits: np.ndarray | None
    table: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def where(self, mask: np.ndarray) -> "Reading":
        """The images of a mask [N]."""
        return Reading(
            [file for file, keep in zip(self.files, mask, strict=True) if keep],
            self.names[mask],
            self.patients[mask],
            self.labels[mask],
            self.source,
            None if self.splits is None else self.splits[mask],
            self.table[mask].reset_index(drop=True),
            list(self.notes),
        )


class ChestXrays(FederatedDataModule):
    """A chest X-ray data set of one organisation.

    A reader says what its label files hold (`read()`); label names, policies for uncertain and blank labels, and
    missing images are handled here, the same for all.

    Args:
        root: The folder of the download. There is no default.
        classes: Some of the classes, in this order; all of them by default. Others are not labelled.
        names: What classes are called: `source` as in the data set, `harmonised` as in `fedlit list labels`, or a map
            from each class to a label of the source, or to several with a rule (`{any: [...]}`, `{all: [...]}`).
        uncertain: What an uncertain label means: `ignore` (no loss, no metric), `zeros`, `ones`, or a map from labels
            of the source to these, with `default` for the others.
        blank: What a label that is not mentioned means, likewise.
        missing: Images that are not on disk: `refuse`, or `drop` with a count.
        official_split: Use the data set's own split where it has one; else patients are divided by `split`.
        partition: Which client a record belongs to; by default patients are dealt to four clients.
    """

    source: str = ""
    """Name of the organisation, and of the data set's column in the table of harmonised labels."""

    labels: tuple[str, ...] = ()
    """The source's own labels, as spelled there."""

    layout: str = ""
    """What the folder holds, for messages."""

    needs: tuple[str, ...] = ()
    """Files by which the folder is recognised, any of them; `*` matches."""

    def __init__(
        self,
        root: Path | None = None,
        classes: list[str] | None = None,
        names: str | Names = "source",
        uncertain: Policy | dict[str, Policy] = "zeros",
        blank: Policy | dict[str, Policy] = "zeros",
        missing: str = "refuse",
        official_split: bool = True,
        partition: Partition | None = None,
        **kwargs,
    ):
        super().__init__(ByPatient(4) if partition is None else partition, **kwargs)
        if root is None:
            raise ValueError(f"data.root is missing: {self.layout}")
        if missing not in ("refuse", "drop"):
            raise ValueError(f"data.missing: expected refuse or drop, found {missing!r}")
        self.root = Path(root).expanduser()
        self.missing, self.official_split = missing, official_split
        self.uncertain = checked_policy(uncertain, self.labels, "data.uncertain")
        self.blank = checked_policy(blank, self.labels, "data.blank")
        self.origins: dict[str, Origin] = origins(self._named(names), self.labels, "data.names")
        self._classes = checked_classes(list(self.origins) if classes is None else classes, list(self.origins))

    @classmethod
    def recognises(cls, root: Path) -> bool:
        """Whether a folder looks like this data set."""
        return any(any(root.glob(pattern)) for pattern in cls.needs)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._classes

    def read(self) -> Reading:
        """Read the label files and find out where each image lies; no image is opened.

        Raises:
            FileNotFoundError: The folder or one of its label files is missing.
            ValueError: A label file has something that does not belong there; names file, line and column.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement read()")

    def records(self) -> Records:
        """Read the label files, decide on uncertain and blank labels, and decode the images into the cache.

        Raises:
            FileNotFoundError: Files or images are missing.
            ValueError: A label file has something that does not belong there, or images cannot be decoded.
        """
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root}: no such folder; {self.layout}")
        reading = self._present(self.read())
        self.notes = reading.notes
        labels = decided(reading.labels, np.isnan(reading.labels), self.blank)
        labels = decided(labels, reading.labels == UNCERTAIN, self.uncertain)
        columns = [self.origins[name] for name in self.classes]
        return Records(
            store=decode_images(reading.files, self.image_size, cache_dir=self.cache_dir),
            names=reading.names,
            labels=np.stack([o.of(labels[:, [self.labels.index(x) for x in o.labels]]) for o in columns], axis=1),
            classes=self.classes,
            patients=reading.patients,
            sites=np.full(len(reading.names), self.source),
            site_classes={},
            splits=reading.splits if self.official_split else None,
            table=reading.table,
        )

    def _present(self, reading: Reading) -> Reading:
        """The images that are there."""
        here = present(reading.files)
        if here.all():
            return reading
        absent = reading.names[~here]
        if self.missing == "refuse" or not here.any():
            raise FileNotFoundError(
                f"{len(absent)} of {len(here)} images in {reading.source} are missing, the first are "
                f"{listed(absent, 3)}; searched {_folders(reading)}. Add them, remove their rows, or set data.missing to drop."
            )
        reading.notes.append(f"{len(absent)} of {len(here)} images of {self.source} are missing and left out")
        warnings.warn(f"{reading.notes[-1]}; the first are {listed(absent, 3)}", stacklevel=4)
        return reading.where(here)

    def _named(self, names: str | Names) -> Names:
        if isinstance(names, dict):
            return names
        if names == "source":
            return {label: label for label in self.labels}
        if names == "harmonised":
            return canonical_names(self.source)
        raise ValueError(f"data.names: expected source, harmonised or a map, found {names!r}")


def present(files: list[Path]) -> np.ndarray:
    """Which files exist, [N] bool; each folder is listed once."""
    listing: dict[Path, set[str]] = {}
    for folder in {file.parent for file in files}:
        listing[folder] = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    return np.array([file.name in listing[file.parent] for file in files], dtype=bool)


def _folders(reading: Reading) -> str:
    folders = list(dict.fromkeys(str(file.parent) for file in reading.files))
    return ", ".join(folders[:3]) + (", ..." if len(folders) > 3 else "")
