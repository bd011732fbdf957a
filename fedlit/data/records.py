"""What a source knows about its images before anything is split or divided among clients."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedlit.data.images import ImageStore

SPLITS = ("train", "val", "test")


@dataclass
class Records:
    """What a source knows about its images before anything is split: N images, C classes.

    Attributes:
        store: The decoded pictures, N of them.
        names: Unique image ids (file names), [N] str.
        labels: The full truth as far as the source knows it, [N, C] float32 in {0, 1, NaN}.
        classes: Names of the C classes.
        patients: Patient of each image, [N] str. Two people never share an id, whatever their hospitals.
        sites: Organisation or hospital of each image, [N] str; one constant where the source has none.
        site_classes: Label scheme: the classes that a site labels. A site that is missing here labels all.
        splits: The official split of each image, [N] "train", "val", "test" or "train_val"; None where there
            is none.
        table: The source's own columns, row by row as above, for `ByColumn`.
    """

    store: ImageStore
    names: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    patients: np.ndarray
    sites: np.ndarray
    site_classes: dict[str, tuple[str, ...]]
    splits: np.ndarray | None
    table: pd.DataFrame


def scheme(records: Records, site: str) -> tuple[str, ...]:
    """The classes that a site labels."""
    return records.site_classes.get(str(site), records.classes)


def hidden_labels(records: Records) -> np.ndarray:
    """Which labels [N, C] an image does not have because its site does not label the class, bool."""
    hidden = np.zeros(records.labels.shape, dtype=bool)
    for site in np.unique(records.sites):
        absent = [label not in scheme(records, site) for label in records.classes]
        hidden[np.ix_(records.sites == site, absent)] = True
    return hidden


def check_records(records: Records) -> None:
    """Refuses records that contradict themselves.

    Raises:
        ValueError: Lengths differ, an image id occurs twice, a label is not 0, 1 or NaN, or the label scheme
            names a site or a class that is not there.
    """
    lengths = {
        "store": len(records.store),
        "names": len(records.names),
        "labels": len(records.labels),
        "patients": len(records.patients),
        "sites": len(records.sites),
        "table": len(records.table),
    }
    if records.splits is not None:
        lengths["splits"] = len(records.splits)
    if len(set(lengths.values())) != 1:
        raise ValueError(f"records: expected one row an image in every field, found {lengths}")
    if len(records.names) == 0:
        raise ValueError("records: expected images, found none")
    if records.labels.shape[1:] != (len(records.classes),) or len(set(records.classes)) != len(records.classes):
        raise ValueError(
            f"records: expected labels [N, C] of C different classes, found {list(records.labels.shape)} "
            f"and classes {list(records.classes)}"
        )
    unique, occurrences = np.unique(records.names, return_counts=True)
    if (occurrences > 1).any():
        twice = unique[occurrences > 1]
        raise ValueError(
            f"records: {len(twice)} image ids occur more than once, the first are {listed(twice)}. "
            "Give each image an id of its own, or remove the repeated rows."
        )
    wrong = ~(np.isnan(records.labels) | (records.labels == 0) | (records.labels == 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"records: expected labels 0, 1 or NaN, found {records.labels[row, column]:g} for image "
            f"{str(records.names[row])!r}, class {records.classes[column]!r} ({wrong.sum()} such labels)"
        )
    for site, classes in records.site_classes.items():
        unknown = [label for label in classes if label not in records.classes]
        if unknown:
            raise ValueError(
                f"label scheme of site {site!r}: unknown class {unknown[0]!r}; classes are {listed(records.classes)}"
            )
        if site not in records.sites:
            raise ValueError(
                f"label scheme of site {site!r}: no image is of that site; sites are {listed(np.unique(records.sites))}"
            )


def listed(values, limit: int = 8) -> str:
    """The first values for an error message."""
    values = [repr(str(value)) for value in values]
    return ", ".join(values[:limit]) + (f", ... ({len(values)} in all)" if len(values) > limit else "")
