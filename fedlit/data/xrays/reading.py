"""The content of a data set's label files, before any image is opened."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd


@dataclass
class Reading:
    """The content of a data set's label files about N images, before any image is opened.

    Attributes:
        files: Path of each image; the file need not exist. ``read_within()`` makes the paths strings.
        names: Unique id of each image, [N] str.
        patients: Patient of each image, [N] str.
        labels: The L labels of the source, [N, L] float32 in {0, 1, ``UNCERTAIN``, NaN}; NaN is a blank.
        source: The label file, or the folder of several, for messages.
        splits: The official split of each image, [N] "train", "val", "test" or "train_val"; None if there is no
            official split.
        table: The columns of the source for ``ByColumn``, with one row for each image.
        notes: Sentences about images that were left out, with reasons and counts.
        sites: Hospital of each image, [N] str; None if all are of the source itself.
        there: Mask of the files that exist, [N] bool; None before the files are searched.
        lines: Place of each image in ``source``, such as "line 7", [N] str; None if it has to be searched for.
        groups: A map from names such as ``sex`` to the group of each image, [N] str, "" if unknown. ``read_within()``
            fills it.
        lost_sites: Hospitals of which no image is of a view that is read.
    """

    files: Sequence[str | Path]
    names: np.ndarray
    patients: np.ndarray
    labels: np.ndarray
    source: Path
    splits: np.ndarray | None
    table: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    sites: np.ndarray | None = None
    there: np.ndarray | None = None
    lines: np.ndarray | None = None
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    lost_sites: tuple[str, ...] = ()

    def where(self, mask: np.ndarray) -> "Reading":
        """Return the reading with only the images of a mask, [N] bool."""
        fields = {"files": list(compress(self.files, mask)), "table": self.table[mask].reset_index(drop=True)}
        for name in ("names", "patients", "labels", "splits", "sites", "there", "lines"):
            fields[name] = None if getattr(self, name) is None else getattr(self, name)[mask]
        return replace(self, groups={name: groups[mask] for name, groups in self.groups.items()}, **fields)
