"""CheXpert in the layout of its official downloads, small or full-size.

Irvin et al., "CheXpert: A Large Chest Radiograph Dataset with Uncertainty Labels and Expert Comparison", AAAI 2019,
https://stanfordmlgroup.github.io/competitions/chexpert/.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.folders import header
from fedlit.data.groups import GroupColumn
from fedlit.data.labels import UNCERTAIN, checked_classes
from fedlit.data.records import Records
from fedlit.data.tables import LabelTable, numbers, read_table, refuse_repeats
from fedlit.data.xrays.base import ChestXrays, refuse, refuse_shared
from fedlit.data.xrays.reading import Reading

LABEL_FILES = {"train": "train.csv", "val": "valid.csv", "test": "test_labels.csv"}
VIEW = "Frontal/Lateral"
COPY = "#again-for-"
"""Separator in the id of a repeated image, before the label for which it is repeated."""

BATCHES = ("CheXpert-v1.0 batch 1", "CheXpert-v1.0 batch 2", "CheXpert-v1.0 batch 3", "CheXpert-v1.0 batch 4")
"""Beginnings of the names of the four batches' folders, such as ``CheXpert-v1.0 batch 1 (validate & csv)``."""

_EXAMPLE = "CheXpert-v1.0/train/patient00001/study1/view1_frontal.jpg"
# The first folder is that of the download, which users rename; some copies of test_labels.csv lack it.
_PATH = (
    r"^(?:(?P<prefix>[^/]+)/)?"
    r"(?P<name>(?:train|valid|test)/(?P<patient>patient\d+)/study\d+/[^/]*(?P<view>frontal|lateral)\.\w+)$"
)


class CheXpert(ChestXrays):
    """CheXpert: 224,316 chest X-rays of 65,240 patients with 13 findings, extracted from reports by a program.

    A label is positive, negative, uncertain (-1) or blank: see ``uncertain`` and ``blank``. "No Finding" is not a
    class. Images of ``train.csv``, ``valid.csv`` and, if it exists, ``test_labels.csv`` are read. The name of an image
    is its path below the folder of the download (``train/patient00001/study1/view1_frontal.jpg``), and its patient is
    ``patient00001``. For ``ByColumn`` the columns are those of the label files; ``test_labels.csv`` has only the view.

    Args:
        root: The folder with ``train.csv``, ``valid.csv`` and the images in ``train/`` and ``valid/``. It may have any
            name, and the images may also be in its subfolder ``CheXpert-v1.0-small/`` or ``CheXpert-v1.0/``, or in the
            folders of the four batches. There is no default.
        views: The views that are read, ``frontal``, ``lateral`` or both. The notes of a run count the others.
        upsample: Labels whose positive training images are repeated once per label. Table 6 of Yuan et al.
            (arXiv:2102.04635) has the ratios of ``[Cardiomegaly, Consolidation]``, as in the code of LibAUC. Validation
            and test images are not repeated.
        official_split: Use ``valid.csv`` (234 images) for validation and ``test_labels.csv`` for the test, which is
            empty without that file. By default all patients are divided by ``split``, as in most papers.
        parts: The label files that are read, of ``train`` (``train.csv``), ``val`` (``valid.csv``) and ``test``
            (``test_labels.csv``); by default all. The 191,027 frontal images of papers are those of ``[train]``.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "CheXpert"
    labels = (
        "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation",
        "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture", "Support Devices",
    )  # fmt: skip
    layout = (
        "expected the official layout of CheXpert: train.csv and valid.csv, the images in train/ and valid/ next to "
        "them, or in CheXpert-v1.0-small/ or CheXpert-v1.0/ next to them, and optionally test_labels.csv with test/"
    )
    group_columns = {"sex": "Sex", "age": "Age", "view": "AP/PA"}
    needs = ("train.csv", "valid.csv", f"{BATCHES[0]}*/train.csv")

    @classmethod
    def recognises(cls, root: Path) -> bool:
        """Return True if a folder looks like this data set; other data sets have a ``train.csv`` too."""
        return any(not file.stat().st_size or "Path" in header(file) for need in cls.needs for file in root.glob(need))

    def __init__(
        self,
        root: Path | None = None,
        views: tuple[Literal["frontal", "lateral"], ...] = ("frontal",),
        upsample: list[str] | None = None,
        official_split: bool = False,
        parts: tuple[Literal["train", "val", "test"], ...] | None = None,
        **kwargs,
    ):
        super().__init__(root, official_split=official_split, **kwargs)
        parts = tuple(LABEL_FILES) if parts is None else parts
        if not parts:
            raise DataError(f"data.parts: expected some of {', '.join(LABEL_FILES)}, found none")
        if official_split and not {"train", "val"} <= set(parts):
            raise DataError(f"data.parts: the official split needs train and val, found {', '.join(parts)}")
        self.parts = tuple(part for part in LABEL_FILES if part in parts)
        self.upsample = tuple(checked_classes(upsample, self.labels, "data.upsample")) if upsample else ()
        if not views:
            raise DataError("data.views: expected frontal, lateral or both, found none")
        self.views = tuple(views)

    def records(self) -> Records:
        """Read the images, and repeat those of ``upsample``; ``keep`` drops repeated images that are not trained on."""
        records = super().records()
        if not self.upsample:
            return records
        # Positive after the policies.
        positive = [self._decided[:, self.labels.index(label)] == 1 for label in self.upsample]
        rows = np.concatenate([np.arange(len(records.names)), *(np.flatnonzero(each) for each in positive)])
        added = {label: each.sum() for label, each in zip(self.upsample, positive, strict=True)}
        copies = [np.full(number, f"{COPY}{label}") for label, number in added.items()]
        again = np.concatenate([np.full(len(records.names), ""), *copies])
        added = ", ".join(f"{number} of {label}" for label, number in added.items())
        self.notes.append(f"positive training images of CheXpert that are repeated: {added}")
        return replace(records.take(rows), names=np.char.add(records.names[rows], again))

    def keep(self, records: Records, owners: np.ndarray) -> np.ndarray:
        """Return a mask of all records except repeated images that are not trained on, [N] bool."""
        return (np.char.find(records.names, COPY) < 0) | (records.splits == "train")

    def read(self) -> Reading:
        """Read the label files; no image is opened."""
        files = {split: LABEL_FILES[split] for split in self.parts}
        tables = {split: self._read_file(name) for split, name in files.items() if self._is_there(split, name)}
        rows = pd.concat([table.rows for table in tables.values()], ignore_index=True)
        refuse_shared(rows["Path"], self.root, f"images are in two of {', '.join(LABEL_FILES.values())}")
        # Paths with a prefix start in the folder of that name if it exists, and otherwise in the root.
        below = {prefix: self.root / prefix for prefix in rows["prefix"].unique()}
        folders = {prefix: folder if folder.is_dir() else self.root for prefix, folder in below.items()}
        batch_of = self._batches()
        reading = Reading(
            files=[
                os.path.join(batch_of.get(parts[1], folders[prefix] / parts[0]), *parts[1:])
                for prefix, parts in zip(rows["prefix"], (path.split("/") for path in rows["Path"]), strict=True)
            ],
            names=rows["Path"].to_numpy(dtype=str),
            patients=rows["patient"].to_numpy(dtype=str),
            labels=np.concatenate([numbers(table, self.labels, (1, 0, UNCERTAIN)) for table in tables.values()]),
            source=self.root,
            splits=np.repeat(list(tables), [len(table.rows) for table in tables.values()]),
            table=rows.drop(columns=["prefix", "patient", "view"]),
        )
        kept = rows["view"].isin(self.views).to_numpy()
        if kept.all():
            return reading
        if not kept.any():
            raise DataError(f"data.views: {self.root} has no {' or '.join(self.views)} image among {len(kept)}")
        (left_out,) = {"frontal", "lateral"} - set(self.views)
        reading.notes.append(f"{(~kept).sum()} of {len(kept)} images of CheXpert are {left_out} and left out")
        return reading.where(kept)

    def group_cells(self, group: GroupColumn, reading: Reading) -> tuple[pd.Series, Path]:
        """Return the cells of a group's column; a view is ``AP/PA`` or else lateral, and an age of 0 is unknown."""
        cells, file = super().group_cells(group, reading)
        if group.name == "view":
            cells = cells.fillna(reading.table[VIEW].str.lower())
        return cells.mask(cells == 0) if group.name == "age" else cells, file

    def _batches(self) -> dict[str, Path]:
        """Return the folder that holds each patient's folder, if the download is in its four batches."""
        folder_of: dict[str, Path] = {}
        for begins in BATCHES:
            for batch in sorted(self.root.glob(f"{begins}*")):
                for folder in (batch, batch / "train", batch / "valid"):
                    inside = os.listdir(folder) if folder.is_dir() else []
                    folder_of |= dict.fromkeys((name for name in inside if name.startswith("patient")), folder)
        return folder_of

    def _label_file(self, name: str) -> Path:
        inside = sorted(self.root.glob(f"{BATCHES[0]}*/{name}"))
        return inside[0] if inside and not (self.root / name).is_file() else self.root / name

    def _is_there(self, split: str, name: str) -> bool:
        if self._label_file(name).is_file():
            return True
        if len(self.parts) > 1 and (split == "test" or (split == "val" and not self.official_split)):
            return False
        raise MissingFileError(f"{self.root}: found no {name}; {self.layout}")

    def _read_file(self, name: str) -> LabelTable:
        """Read a label file, with the parts of ``Path`` in columns ``Path``, ``prefix``, ``patient`` and ``view``."""
        text = ("Path",) if name == LABEL_FILES["test"] else ("Path", VIEW)
        table = read_table(self._label_file(name), (*text, *self.labels), text)
        parts = table.rows["Path"].str.extract(_PATH)
        refuse(table, "Path", parts["name"].isna().to_numpy(), f"a path such as {_EXAMPLE}")
        if VIEW not in text:
            table.rows[VIEW] = parts["view"].str.capitalize()
        view = table.rows[VIEW].str.lower()
        refuse(table, VIEW, ~view.isin(("frontal", "lateral")).to_numpy(), "Frontal or Lateral")
        table.rows = table.rows.assign(
            Path=parts["name"], prefix=parts["prefix"].fillna(""), patient=parts["patient"], view=view
        )
        refuse_repeats(table, "Path")
        return table
