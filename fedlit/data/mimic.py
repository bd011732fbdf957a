"""MIMIC-CXR-JPG in the layout of its official download, with its own labels or those of CXR-LT.

Johnson et al., "MIMIC-CXR-JPG, a large publicly available database of labeled chest radiographs", 2019,
https://physionet.org/content/mimic-cxr-jpg/. Holste et al., "Towards long-tailed, multi-label disease classification
from chest X-ray: Overview of the CXR-LT challenge", 2024, https://physionet.org/content/cxr-lt-iccv-workshop-cvamd/.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.data.labels import UNCERTAIN, near
from fedlit.data.records import listed
from fedlit.data.tables import Table, numbers, read_table, refuse_repeats
from fedlit.data.xrays import ChestXrays, Reading

PREFIX = "mimic-cxr-2.0.0-"
SPLITS = {"train": "train", "validate": "val", "test": "test"}
VIEW = "ViewPosition"
FRONTAL = ("PA", "AP")
_IDS = ("subject_id", "study_id")


class _MIMICImages(ChestXrays):
    """The images of MIMIC-CXR-JPG: their views, patients and official split; a subclass labels them.

    Args:
        root: The folder with `mimic-cxr-2.0.0-metadata.csv.gz`, `mimic-cxr-2.0.0-split.csv.gz` and the images in
            `files/`; the tables may be unpacked. There is no default.
        views: Values of `ViewPosition` that are read, `none` for an empty one; others are counted in the notes.
        **kwargs: Further arguments of ChestXrays.
    """

    layout = (
        f"expected the official layout of MIMIC-CXR-JPG: {PREFIX}metadata, {PREFIX}split and {PREFIX}chexpert (or "
        "-negbio), each as .csv.gz or .csv, and the images in files/"
    )

    _key: str
    """The column that joins images to their row of labels."""

    _values: tuple[float, ...]
    """What a label may be, other than blank."""

    def __init__(self, root: Path | None = None, views: tuple[str, ...] = FRONTAL, **kwargs):
        super().__init__(root, **kwargs)
        if not views:
            raise ValueError("data.views: expected one or more values of ViewPosition, such as PA and AP, found none")
        self.views = tuple(views)

    def read(self) -> Reading:
        images = self._metadata()
        notes: list[str] = []
        viewed = self._viewed(images, notes)
        labelled, labels = self._labelled(viewed, images, notes)
        rows = labelled.rows
        return Reading(
            files=[
                self.root / "files" / f"p{patient[:2]}" / f"p{patient}" / f"s{study}" / f"{image}.jpg"
                for patient, study, image in zip(rows["subject_id"], rows["study_id"], rows["dicom_id"], strict=True)
            ],
            names=rows["dicom_id"].to_numpy(dtype=str),
            patients=rows["subject_id"].to_numpy(dtype=str),
            labels=labels,
            source=images.path,
            splits=self._splits(labelled) if self.official_split else None,
            table=rows,
            notes=notes,
        )

    def _label_files(self) -> list[Path]:
        raise NotImplementedError(f"{type(self).__name__} does not implement _label_files()")

    def _file(self, kind: str) -> Path:
        """A table of the download, packed or not."""
        packed, plain = (self.root / f"{PREFIX}{kind}{suffix}" for suffix in (".csv.gz", ".csv"))
        for path in (packed, plain):
            if path.is_file():
                return path
        raise FileNotFoundError(f"{self.root}: found neither {packed.name} nor {plain.name}; {self.layout}")

    def _metadata(self) -> Table:
        """The table of all images."""
        table = read_table(self._file("metadata"), ("dicom_id", *_IDS, VIEW), ("dicom_id", *_IDS))
        refuse_repeats(table, "dicom_id")
        for column in _IDS:
            _refuse(table, column, ~table.rows[column].str.fullmatch(r"\d+").to_numpy(dtype=bool), "digits")
        return table

    def _viewed(self, images: Table, notes: list[str]) -> Table:
        """The images of the views."""
        view = images.rows[VIEW].astype(object).where(images.rows[VIEW].notna(), "none")
        found = view.value_counts().sort_index()
        for name in self.views:
            # A small copy may have no AP, say; other views are taken for misspelt.
            if name not in found and name not in FRONTAL:
                raise ValueError(
                    f"data.views: no image in {images.path} has {VIEW} {name!r}; {near(name, list(found.index))}"
                )
        kept = view.isin(self.views).to_numpy()
        others = ", ".join(f"{count} {name}" for name, count in found.items() if name not in self.views)
        if not kept.any():
            raise ValueError(
                f"data.views: no image in {images.path} has {VIEW} {' or '.join(self.views)}; there are {others}"
            )
        if others:
            notes.append(
                f"{(~kept).sum()} of {len(kept)} images of {self.source} are of other views, left out: {others}"
            )
        return images.where(kept)

    def _labelled(self, images: Table, everything: Table, notes: list[str]) -> tuple[Table, np.ndarray]:
        """Those of the images that have a row of labels, and these, [N, L]."""
        tables = [
            read_table(path, (*_IDS, self._key, *self.labels), (*_IDS, self._key)) for path in self._label_files()
        ]
        for table in tables:
            refuse_repeats(table, self._key, self._key)
        rows = pd.concat([table.rows for table in tables], ignore_index=True)
        files = ", ".join(table.path.name for table in tables)
        twice = rows[self._key].duplicated()
        if twice.any():
            raise ValueError(
                f"{files}: {twice.sum()} values of {self._key} are in several of these files, the first are "
                f"{listed(rows[self._key][twice], 3)}. Keep one row of each."
            )
        row_of = pd.Index(rows[self._key]).get_indexer(images.rows[self._key])
        here = row_of >= 0
        if not here.any():
            raise ValueError(f"{files}: no {self._key} is one of the {len(here)} images in {images.path}")
        if not here.all():
            without = images.rows[self._key][~here]
            notes.append(
                f"{(~here).sum()} of {len(here)} images of {self.source} have no row in {files} and are left out; "
                f"{self._key} {listed(without.unique(), 3)}"
            )
        orphans = (~rows[self._key].isin(everything.rows[self._key])).sum()
        if orphans:
            notes.append(f"{orphans} of {len(rows)} rows in {files} have no image in {images.path.name}")
        images, row_of = images.where(here), row_of[here]
        for column in _IDS:
            theirs = rows[column].to_numpy(dtype=str)[row_of]
            wrong = images.rows[column].to_numpy(dtype=str) != theirs
            if wrong.any():
                raise ValueError(
                    f"{images.at(wrong)}: column {column!r}: expected '{theirs[wrong][0]}' as in {files} for the same "
                    f"{self._key}, found {images.rows[column][wrong].iloc[0]!r} ({wrong.sum()} such lines)"
                )
        return images, np.concatenate([numbers(table, self.labels, self._values) for table in tables])[row_of]

    def _splits(self, images: Table) -> np.ndarray:
        """The official split of each image, [N] "train", "val" or "test"."""
        table = read_table(self._file("split"), ("dicom_id", "split"), ("dicom_id", "split"))
        refuse_repeats(table, "dicom_id")
        _refuse(table, "split", ~table.rows["split"].isin(SPLITS).to_numpy(), "train, validate or test")
        row_of = pd.Index(table.rows["dicom_id"]).get_indexer(images.rows["dicom_id"])
        absent = row_of < 0
        if absent.any():
            raise ValueError(
                f"{images.at(absent)}: image {images.rows['dicom_id'][absent].iloc[0]!r} is not in {table.path.name} "
                f"({absent.sum()} such images). Add them, or set data.official_split to false."
            )
        return table.rows["split"].map(SPLITS).to_numpy(dtype=str)[row_of]


class MIMICCXR(_MIMICImages):
    """MIMIC-CXR-JPG: 377,110 chest X-rays of 65,379 patients with 13 findings, found in reports by a labeller.

    Labels are those of a study and hold for each of its images. They are positive, negative, uncertain (-1) or blank:
    see `uncertain` and `blank`. "No Finding" is no class. Images whose study has no row of labels are left out and
    counted in the notes. For `ByColumn` the columns are those of the metadata.

    Args:
        root: The folder with `mimic-cxr-2.0.0-metadata.csv.gz`, `-chexpert.csv.gz` (or `-negbio.csv.gz`),
            `-split.csv.gz` and the images in `files/`; the tables may be unpacked. There is no default.
        labeller: Whose labels: `chexpert` or `negbio`.
        **kwargs: Further arguments.
    """

    source = "MIMIC"
    labels = (
        "Atelectasis",
        "Cardiomegaly",
        "Consolidation",
        "Edema",
        "Enlarged Cardiomediastinum",
        "Fracture",
        "Lung Lesion",
        "Lung Opacity",
        "Pleural Effusion",
        "Pleural Other",
        "Pneumonia",
        "Pneumothorax",
        "Support Devices",
    )
    needs = (f"{PREFIX}*.csv.gz", f"{PREFIX}*.csv")
    _key = "study_id"
    _values = (1, 0, UNCERTAIN)

    def __init__(self, root: Path | None = None, labeller: Literal["chexpert", "negbio"] = "chexpert", **kwargs):
        super().__init__(root, **kwargs)
        if labeller not in ("chexpert", "negbio"):
            raise ValueError(f"data.labeller: expected chexpert or negbio, found {labeller!r}")
        self.labeller = labeller

    def _label_files(self) -> list[Path]:
        return [self._file(self.labeller)]


class MIMICCXRLT(_MIMICImages):
    """MIMIC-CXR-JPG with the labels of the CXR-LT challenge of 2023: 25 findings, the 20 of NIH and CheXpert among them.

    "No Finding", the 26th, is no class. Images that have no row of labels are left out and counted in the notes. The
    official split is that of MIMIC-CXR-JPG, not the challenge's. The layout of the label files is written from memory,
    not from a copy: `dicom_id`, `subject_id`, `study_id` and a column of 0 and 1 for each label, one row an image.

    Args:
        root: The folder of MIMIC-CXR-JPG with `mimic-cxr-2.0.0-metadata.csv.gz`, `-split.csv.gz` and the images in
            `files/`; the tables may be unpacked. There is no default.
        labels_file: The label file of CXR-LT, or several that are put together. There is no default.
        **kwargs: Further arguments.
    """

    source = "MIMIC-LT"
    labels = (
        "Atelectasis",
        "Calcification of the Aorta",
        "Cardiomegaly",
        "Consolidation",
        "Edema",
        "Emphysema",
        "Enlarged Cardiomediastinum",
        "Fibrosis",
        "Fracture",
        "Hernia",
        "Infiltration",
        "Lung Lesion",
        "Lung Opacity",
        "Mass",
        "Nodule",
        "Pleural Effusion",
        "Pleural Other",
        "Pleural Thickening",
        "Pneumomediastinum",
        "Pneumonia",
        "Pneumoperitoneum",
        "Pneumothorax",
        "Subcutaneous Emphysema",
        "Support Devices",
        "Tortuous Aorta",
    )
    _key = "dicom_id"
    _values = (1, 0)

    # No Path: jsonargparse writes a list of them, in a union, as one text that it cannot read back.
    def __init__(self, root: Path | None = None, labels_file: str | list[str] | None = None, **kwargs):
        super().__init__(root, **kwargs)
        files = labels_file if isinstance(labels_file, list) else [labels_file]
        if not files or None in files:
            raise ValueError("data.labels_file is missing: expected the label file of CXR-LT, or a list of them")
        self.labels_file = [Path(file).expanduser() for file in files]

    def _label_files(self) -> list[Path]:
        return self.labels_file


def _refuse(table: Table, column: str, wrong: np.ndarray, expected: str) -> None:
    if wrong.any():
        raise ValueError(
            f"{table.at(wrong)}: column {column!r}: expected {expected}, found "
            f"{table.rows[column][wrong].iloc[0]!r} ({wrong.sum()} such lines)"
        )
