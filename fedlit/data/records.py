"""Records of a source: its images and labels before they are split and divided among clients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlit.core.errors import DataError
from fedlit.data.groups import check_groups
from fedlit.data.patients import is_unnamed, united
from fedlit.data.pictures.store import ImageStore, StoreView

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "val", "test")


@dataclass
class Records:
    """The N images of a source with C classes, before they are split and divided among clients.

    Attributes:
        store: The N decoded images.
        names: Unique image ids, such as file names, [N] str.
        labels: All labels of the source, [N, C] float32 in {0, 1, NaN}.
        classes: Names of the C classes.
        patients: Patient of each image, [N] str. Two patients have different ids, also in different hospitals.
        sites: Organisation or hospital of each image, [N] str; a constant if the source has only one.
        site_classes: A map from sites to the classes that they label. Other sites label all classes.
        splits: The official split of each image, [N] "train", "val", "test" or "train_val"; None if there is no
            official split.
        table: The columns of the source for ``ByColumn``, with one row for each image; by default only ``image``.
        drawn: Whether fedlit draws the split of each image, [N] bool; by default as ``splits`` say.
        groups: A map from names such as ``sex`` to the group of each image, [N] str, "" if unknown.
    """

    store: ImageStore | StoreView
    names: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    patients: np.ndarray
    sites: np.ndarray
    site_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    splits: np.ndarray | None = None
    table: pd.DataFrame = None  # __post_init__ makes one
    drawn: np.ndarray | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table is None:
            from pandas import DataFrame

            self.table = DataFrame({"image": self.names})

    def drawn_names(self) -> set[str]:
        """Return the names of images whose part, training or another, is drawn at random and not official."""
        drawn = self.drawn
        if drawn is None:
            drawn = np.full(len(self.names), True) if self.splits is None else np.asarray(self.splits) == "train_val"
        return set(self.names[drawn].tolist())

    def take(self, rows: np.ndarray) -> Records:
        """Return the records of some rows, in any order, with repetitions if wanted."""
        fields = ("names", "labels", "patients", "sites", "splits", "drawn")
        taken: dict[str, Any] = {name: None if (of := getattr(self, name)) is None else of[rows] for name in fields}
        groups = {name: values[rows] for name, values in self.groups.items()}
        table, store = self.table.iloc[rows].reset_index(drop=True), StoreView([self.store], rows)
        return replace(self, store=store, table=table, groups=groups, **taken)


@dataclass(frozen=True)
class LeftOut:
    """An image that a source leaves out.

    Attributes:
        image: Id of the image.
        file: Path of its file.
        reason: Reason why it is left out.
    """

    image: str
    file: str
    reason: str


def hidden_labels(records: Records) -> np.ndarray:
    """Return a mask of the labels whose class the image's site does not label, [N, C] bool."""
    sites, site_of_row = np.unique(records.sites, return_inverse=True)
    labelled = [records.site_classes.get(str(site), records.classes) for site in sites]
    absent = np.array([[label not in there for label in records.classes] for there in labelled], dtype=bool)
    return absent[site_of_row]


def labelled_classes(records: Records) -> tuple[str, ...]:
    """Return the classes that at least one site labels."""
    hidden = np.asarray(hidden_labels(records).all(axis=0))
    return tuple(compress(records.classes, ~hidden))


def check_records(records: Records, exact: bool = False) -> Records:
    """Return the records after checking that they are consistent, with one spelling of each patient.

    Args:
        records: The records.
        exact: Treat different spellings of an id as different patients.

    Raises:
        DataError: Lengths differ, an image has no site or no patient, an image id occurs twice, a label is not 0, 1 or
            NaN, ``site_classes`` names an unknown site or class, or a group has too many different values.
    """
    records = replace(records, labels=np.asarray(records.labels), classes=tuple(map(str, records.classes)))
    fields = ("store", "names", "labels", "patients", "sites", "table", "splits", "drawn")
    lengths = {name: len(getattr(records, name)) for name in fields if getattr(records, name) is not None}
    if len(set(lengths.values())) != 1:
        raise DataError(f"records: expected one row per image in each field, not {lengths}")
    if len(records.names) == 0:
        raise DataError("records: expected images, found none")
    if records.labels.shape[1:] != (len(records.classes),) or len(set(records.classes)) != len(records.classes):
        raise DataError(
            f"records: expected labels [N, C] of C different classes, found {list(records.labels.shape)} "
            f"and classes {list(records.classes)}"
        )
    nowhere = is_unnamed(records.sites)
    if nowhere.any():
        raise DataError(
            f"records: expected a site for each image, found none for {nowhere.sum()} of {len(nowhere)}, the first is "
            f"image {str(records.names[np.argmax(nowhere)])!r}. Fill in its cell, or remove the image"
        )
    unnamed = is_unnamed(records.patients)
    if unnamed.any():
        raise DataError(
            f"records: expected a patient for each image, found none for {unnamed.sum()} of {len(unnamed)}, the first "
            f"is image {str(records.names[np.argmax(unnamed)])!r}. If patients are unknown, give each image a patient "
            "id of its own"
        )
    unique, occurrences = np.unique(np.asarray(records.names).astype(str), return_counts=True)
    if (occurrences > 1).any():
        twice = unique[occurrences > 1]
        raise DataError(
            f"records: {len(twice)} image ids occur more than once, the first are {listed(twice)}. "
            "Give each image its own id, or remove the repeated rows."
        )
    wrong = ~(np.isnan(records.labels) | (records.labels == 0) | (records.labels == 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"records: expected labels 0, 1 or NaN, found {records.labels[row, column]:g} for image "
            f"{str(records.names[row])!r}, class {records.classes[column]!r} ({wrong.sum()} such labels)"
        )
    for site, classes in ((str(site), [*map(str, classes)]) for site, classes in records.site_classes.items()):
        unknown = [label for label in classes if label not in records.classes]
        if unknown:
            raise DataError(
                f"label scheme of site {site!r}: unknown class {unknown[0]!r}; classes are {listed(records.classes)}"
            )
        if site not in records.sites:
            raise DataError(
                f"label scheme of site {site!r}: no image has this site; sites are {listed(np.unique(records.sites))}"
            )
    checked: dict[str, Any] = {n: np.array(getattr(records, n), dtype=str) for n in ("names", "sites", "patients")}
    checked["groups"] = check_groups(records.groups, len(records.names))
    if not exact:
        checked["patients"], note = united(checked["patients"])
        if note:
            warnings.warn(note, stacklevel=2)
    return replace(records, **checked)


def listed(values, limit: int = 8) -> str:
    """Return the first values as text for an error message, and their number if there are more."""
    values = [repr(str(value)) for value in values]
    return ", ".join(values[:limit]) + (f", ... ({len(values)} in all)" if len(values) > limit else "")


def contents(folder: Path) -> str:
    """Return the names in a folder for an error message."""
    if not folder.is_dir():
        return "no such folder"
    return listed(sorted(path.name for path in folder.iterdir())) or "an empty folder"
