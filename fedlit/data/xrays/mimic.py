"""MIMIC-CXR-JPG in the layout of its official download, with its own labels or those of CXR-LT.

Johnson et al., "MIMIC-CXR-JPG, a large publicly available database of labeled chest radiographs", 2019,
https://physionet.org/content/mimic-cxr-jpg/. Holste et al., "Towards long-tailed, multi-label disease classification
from chest X-ray: Overview of the CXR-LT challenge", 2024, https://physionet.org/content/cxr-lt-iccv-workshop-cvamd/.
"""

import os
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.groups import GroupColumn
from fedlit.data.labels import UNCERTAIN
from fedlit.data.records import contents, listed
from fedlit.data.tables import LabelTable, numbers, read_table, refuse_repeats
from fedlit.data.xrays.base import ChestXrays, refuse, refuse_shared
from fedlit.data.xrays.reading import Reading

PREFIX = "mimic-cxr-2.0.0-"
SPLITS = {"train": "train", "validate": "val", "test": "test"}
VIEW, STUDY = "ViewPosition", "StudyDate"
FRONTAL = ("PA", "AP")
CXR_LT, CXR_LT_FOLDER = ("train.csv", "development.csv", "test.csv"), "cxr-lt-2023"
_IDS = ("subject_id", "study_id")
PATIENTS = ("patients.csv.gz", "patients.csv", "hosp/patients.csv.gz", "hosp/patients.csv")


class _MIMICImages(ChestXrays):
    """The images of MIMIC-CXR-JPG with their views, patients and official split; a subclass labels them.

    Args:
        root: The folder of the download. There is no default.
        views: The values of ``ViewPosition`` that are read, with ``none`` for an empty one. The notes of a run count
            the others.
        **kwargs: Further arguments of ChestXrays.
    """

    layout = (
        f"expected the official layout of MIMIC-CXR-JPG: {PREFIX}metadata, {PREFIX}split and {PREFIX}chexpert (or "
        "-negbio), each as .csv.gz or .csv, and the images in files/"
    )

    group_columns = {"sex": "gender", "age": "anchor_age", "view": VIEW}
    _ids: tuple[str, ...]  # columns that label files must have
    _key: str  # the column that joins images with their labels
    _values: tuple[float, ...]  # allowed values of a label, apart from blank

    def __init__(self, root: Path | None = None, views: tuple[str, ...] = FRONTAL, **kwargs):
        super().__init__(root, **kwargs)
        if not views:
            raise DataError("data.views: expected values of ViewPosition such as PA and AP, found none")
        self.views = tuple(views)

    @classmethod
    def lies_in(cls, root: Path) -> bool:
        """Return True if a folder has the tables of the images."""
        return any(root.glob(f"{PREFIX}metadata.csv*"))

    def read(self) -> Reading:
        """Read the tables of images, labels and splits; no image is opened."""
        images = self._metadata()
        notes: list[str] = []
        viewed = self._of_views(images, VIEW, FRONTAL, notes)
        labelled, labels = self._labelled(viewed, images, notes)
        rows = labelled.rows
        return Reading(
            files=[
                os.path.join(self.root, "files", f"p{patient[:2]}", f"p{patient}", f"s{study}", f"{image}.jpg")
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

    def group_cells(self, group: GroupColumn, reading: Reading) -> tuple[pd.Series, Path]:
        """Return the cells of a group's column; sex and age are those of MIMIC-IV's table of patients.

        An age is ``anchor_age`` plus the years from ``anchor_year`` to the study, if both years are known.
        """
        if group.column not in ("gender", "anchor_age"):
            return super().group_cells(group, reading)
        file = next((path for name in PATIENTS if (path := self.root / name).is_file()), None)
        if file is None:
            raise MissingFileError(
                f"{self.root}: data.groups: {group.name} needs {PATIENTS[0]} of MIMIC-IV in this folder or in its "
                f"hosp/, found none; add it, or remove {group.name} from data.groups"
            )
        table = read_table(file, ("subject_id", group.column), ("subject_id",))
        refuse_repeats(table, "subject_id", "patient")
        of = table.rows.set_index("subject_id").reindex(reading.patients).reset_index(drop=True)
        cells = of[group.column]
        if group.column == "anchor_age" and "anchor_year" in of and STUDY in reading.table:
            study = pd.to_numeric(reading.table[STUDY], errors="coerce") // 10_000
            cells = cells + (study.reset_index(drop=True) - of["anchor_year"]).fillna(0)
        return cells, file

    def _label_files(self) -> list[Path]:
        raise NotImplementedError(f"{type(self).__name__} does not implement _label_files()")

    def _file(self, kind: str) -> Path:
        packed, plain = (self.root / f"{PREFIX}{kind}{suffix}" for suffix in (".csv.gz", ".csv"))
        if not packed.is_file() and not plain.is_file():
            raise MissingFileError(f"{self.root}: found neither {packed.name} nor {plain.name}; {self.layout}")
        return packed if packed.is_file() else plain

    def _metadata(self) -> LabelTable:
        table = read_table(self._file("metadata"), ("dicom_id", *_IDS, VIEW), ("dicom_id", *_IDS))
        refuse_repeats(table, "dicom_id")
        for column in _IDS:
            refuse(table, column, ~table.rows[column].str.fullmatch(r"\d+").to_numpy(dtype=bool), "digits")
        return table

    def _labelled(self, images: LabelTable, everything: LabelTable, notes: list[str]) -> tuple[LabelTable, np.ndarray]:
        """Return the images that have a row of labels, and their labels, [N, L]."""
        tables = [read_table(path, (*self._ids, *self.labels), (*_IDS, *self._ids)) for path in self._label_files()]
        for table in tables:
            refuse_repeats(table, self._key, self._key)
        rows = pd.concat([table.rows for table in tables], ignore_index=True)
        files = ", ".join(table.path.name for table in tables)
        refuse_shared(rows[self._key], files, f"values of {self._key} are in several of these files")
        row_of = pd.Index(rows[self._key]).get_indexer(images.rows[self._key])
        here = row_of >= 0
        if not here.any():
            raise DataError(f"{files}: no {self._key} is of the {len(here)} images in {images.path}")
        if not here.all():
            number, without = f"{(~here).sum()} of {len(here)}", images.rows[self._key][~here].unique()
            reason = f"have no row in {files} and are left out; {self._key} {listed(without, 3)}"
            notes.append(f"{number} images of {self.source} {reason}")
        if orphans := (~rows[self._key].isin(everything.rows[self._key])).sum():
            notes.append(f"{orphans} of {len(rows)} rows in {files} have no image in {images.path.name}")
        images, row_of = images.where(here), row_of[here]
        for column in rows.columns.intersection(_IDS):
            same = rows[column].to_numpy(dtype=str)[row_of]
            wrong = images.rows[column].to_numpy(dtype=str) != same
            refuse(images, column, wrong, f"'{same[np.argmax(wrong)]}' as in {files} for the same {self._key}")
        return images, np.concatenate([numbers(table, self.labels, self._values) for table in tables])[row_of]

    def _splits(self, images: LabelTable) -> np.ndarray:
        """Return the official split of each image, [N] "train", "val" or "test"."""
        table = read_table(self._file("split"), ("dicom_id", "split"), ("dicom_id", "split"))
        refuse_repeats(table, "dicom_id")
        refuse(table, "split", ~table.rows["split"].isin(SPLITS).to_numpy(), "train, validate or test")
        row_of = pd.Index(table.rows["dicom_id"]).get_indexer(images.rows["dicom_id"])
        absent = row_of < 0
        if absent.any():
            image = images.rows["dicom_id"][absent].iloc[0]
            raise DataError(
                f"{images.at(absent)}: image {image!r} is not in {table.path.name} ({absent.sum()} such images). "
                "Add them, or set data.official_split to false."
            )
        return table.rows["split"].map(SPLITS).to_numpy(dtype=str)[row_of]


class MIMICCXR(_MIMICImages):
    """MIMIC-CXR-JPG: 377,110 chest X-rays of 65,379 patients with 13 findings, extracted from reports by a program.

    The labels of a study hold for each of its images. They are positive, negative, uncertain (-1) or blank: see
    ``uncertain`` and ``blank``. "No Finding" is not a class. Images whose study has no labels are left out, and the
    notes of a run count them. For ``ByColumn`` the columns are those of the metadata.

    Args:
        root: The folder with ``mimic-cxr-2.0.0-metadata.csv.gz``, ``-chexpert.csv.gz`` (or ``-negbio.csv.gz``),
            ``-split.csv.gz`` and the images in ``files/``; the tables may be decompressed. There is no default.
        labeller: The program whose labels are used: ``chexpert`` or ``negbio``.
        **kwargs: Further arguments.
    """

    source = "MIMIC"
    labels = (
        "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture",
        "Lung Lesion", "Lung Opacity", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax",
        "Support Devices",
    )  # fmt: skip
    needs = (f"{PREFIX}*.csv.gz", f"{PREFIX}*.csv")
    _key, _ids = "study_id", _IDS
    _values = (1, 0, UNCERTAIN)

    def __init__(self, root: Path | None = None, labeller: Literal["chexpert", "negbio"] = "chexpert", **kwargs):
        super().__init__(root, **kwargs)
        self.labeller = labeller

    def _label_files(self) -> list[Path]:
        return [self._file(self.labeller)]


class MIMICCXRLT(_MIMICImages):
    """MIMIC-CXR-JPG with the labels of the CXR-LT challenge of 2023: 25 findings, including the 20 of NIH and CheXpert.

    "No Finding", the 26th label, is not a class. Images without labels are left out, and the notes of a run count them.
    The official split is that of MIMIC-CXR-JPG, not that of the challenge. The expected layout of the label files was
    not checked against a copy of them: each row is an image with ``dicom_id`` and a column of 0 and 1 for each label.
    If ``subject_id`` and ``study_id`` are included, they must equal those of MIMIC-CXR-JPG.

    Args:
        root: The folder of MIMIC-CXR-JPG with ``mimic-cxr-2.0.0-metadata.csv.gz``, ``-split.csv.gz`` and the images in
            ``files/``; the tables may be decompressed. There is no default.
        labels_file: PhysioNet's folder ``cxr-lt-2023``, whose ``train.csv``, ``development.csv`` and ``test.csv`` are
            concatenated, or a label file, or a list of label files. There is no default.
        **kwargs: Further arguments.
    """

    source = "MIMIC-LT"
    labels = (
        "Atelectasis", "Calcification of the Aorta", "Cardiomegaly", "Consolidation", "Edema", "Emphysema",
        "Enlarged Cardiomediastinum", "Fibrosis", "Fracture", "Hernia", "Infiltration", "Lung Lesion", "Lung Opacity",
        "Mass", "Nodule", "Pleural Effusion", "Pleural Other", "Pleural Thickening", "Pneumomediastinum", "Pneumonia",
        "Pneumoperitoneum", "Pneumothorax", "Subcutaneous Emphysema", "Support Devices", "Tortuous Aorta",
    )  # fmt: skip
    _key, _ids = "dicom_id", ("dicom_id",)
    _values = (1, 0)

    # Not Path, because jsonargparse writes a list of paths in a union as one string that it cannot read back.
    def __init__(self, root: Path | None = None, labels_file: str | list[str] | None = None, **kwargs):
        super().__init__(root, **kwargs)
        files = labels_file if isinstance(labels_file, list) else [labels_file]
        if not files or None in files:
            raise DataError("data.labels_file is missing: expected one or more files of CXR-LT")
        self.labels_file = [part for file in files for part in _label_files(Path(file).expanduser())]

    def _label_files(self) -> list[Path]:
        return self.labels_file


def _label_files(path: Path) -> list[Path]:
    """Return the label files in PhysioNet's folder of CXR-LT; for a file, only itself."""
    if not path.is_dir():
        return [path]
    if files := [file for name in CXR_LT if (file := path / name).is_file()]:
        return files
    inside = f"{CXR_LT_FOLDER}/" if (path / CXR_LT_FOLDER).is_dir() else ""
    hint = f"; name {path / CXR_LT_FOLDER}" if inside else ""
    raise MissingFileError(f"{path}: found {contents(path)}, expected {', '.join(CXR_LT)} of CXR-LT{hint}")
