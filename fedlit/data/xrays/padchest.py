"""PadChest in the layout of its official download.

Bustos et al., "PadChest: A large chest x-ray image dataset with multi-label annotated reports", Medical Image
Analysis 66, 2020, https://bimcv.cipf.es/bimcv-projects/padchest/.
"""

import ast
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.groups import GroupColumn
from fedlit.data.labels import Policy
from fedlit.data.records import contents, listed
from fedlit.data.tables import LabelTable, read_table, refuse_repeats
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.reading import Reading

SAYS_NOTHING = ("exclude", "unchanged", "suboptimal study")
"""Labels of reports that leave other findings open."""

APART = {"emphysema": "subcutaneous"}
"""Phrases, each with a preceding word that makes it a different finding."""

STUDY = "StudyDate_DICOM"
FRONTAL = ("PA", "AP", "AP_horizontal")
_FILLED = ("ImageID", "ImageDir", "PatientID")
_NEEDED = (*_FILLED, "Projection", "MethodLabel", "Labels")


class PadChest(ChestXrays):
    """PadChest: 160,868 chest X-rays of 67,625 patients of one Spanish hospital, labelled from their reports.

    The data set has some 190 labels. Here a class is a phrase. It is positive if one of the image's labels contains it
    as whole words or as their plural: "multiple nodules" is a nodule, and "pseudonodule" is not. "Subcutaneous
    emphysema" is an emphysema only if ``findings`` names it. An image with labels is negative for all other phrases. An
    image without labels is blank for all phrases. An image with ``exclude``, ``unchanged`` or ``suboptimal study`` is
    blank for all phrases that it is not positive for, because such a report leaves other findings open. There is no
    official split. For ``ByColumn`` the columns are those of the label file.

    Args:
        root: The folder with ``PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv`` (any ``PADCHEST_*.csv`` or
            ``.csv.gz``). The 16-bit images are in ``0/`` to ``54/`` (their ``ImageDir``) or directly in the folder, or
            either way in ``images/``. There is no default.
        findings: Phrases to search for in the labels, in upper or lower case. They replace the default phrases, so
            ``names`` must then be ``source`` or a map.
        views: The values of ``Projection`` that are read, with ``none`` for an empty one. The notes of a run count the
            others.
        physician_only: Keep only images whose reports were labelled by a physician, not by a neural network.
        blank: Meaning of all labels of an image that has none: ``ignore`` (no loss, no metric), ``zeros``, ``ones``, or
            a map from phrases to these words, with ``default`` for the others.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "PadChest"
    labels = (
        "atelectasis", "cardiomegaly", "consolidation", "pulmonary edema", "emphysema", "fibrosis", "fracture",
        "hernia", "infiltrates", "mass", "nodule", "pleural effusion", "pleural thickening", "pneumonia",
        "pneumothorax", "device", "pacemaker",
    )  # fmt: skip
    layout = (
        "expected the official layout of PadChest: PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv (or .csv.gz), "
        "the images in the folders 0/ to 54/ or next to the label file, also in images/"
    )
    group_columns = {
        "sex": "PatientSex_DICOM", "age": "PatientBirth", "view": "Projection", "scanner": "Manufacturer_DICOM",
    }  # fmt: skip
    needs = ("PADCHEST_*.csv", "PADCHEST_*.csv.gz")

    def __init__(
        self,
        root: Path | None = None,
        findings: list[str] | None = None,
        views: tuple[str, ...] = FRONTAL,
        physician_only: bool = False,
        blank: Policy | dict[str, Policy] = "ignore",
        **kwargs,
    ):
        if findings is not None:
            self.labels = _checked_phrases(findings)
        super().__init__(root, blank=blank, **kwargs)
        if not views:
            raise DataError(f"data.views: expected values of Projection such as {listed(FRONTAL)}")
        self.views, self.physician_only = tuple(views), physician_only

    def read(self) -> Reading:
        """Read the label file; no image is opened."""
        file = self._label_file()
        table = read_table(file, _NEEDED, _FILLED)
        refuse_repeats(table, "ImageID")
        notes: list[str] = []
        table = self._of_views(table, "Projection", FRONTAL, notes)
        if self.physician_only:
            table = _by_physician(table, notes)
        labels, open_ended = _parse_labels(table, self.labels)
        if unlabelled := int(np.isnan(labels).all(axis=1).sum()):
            number = f"{unlabelled} of {len(labels)} images of {self.source}"
            notes.append(f"{number} have no labels: all phrases are blank")
        if open_ended:
            number = f"{open_ended} of {len(labels)} images of {self.source}"
            notes.append(
                f"{number} are labelled {' or '.join(SAYS_NOTHING)}: blank for all phrases that they are not positive "
                "for"
            )
        return Reading(
            files=_image_files(self.root, table),
            names=table.rows["ImageID"].to_numpy(dtype=str),
            patients=table.rows["PatientID"].to_numpy(dtype=str),
            labels=labels,
            source=file,
            splits=None,
            table=table.rows,
            notes=notes,
        )

    def group_cells(self, group: GroupColumn, reading: Reading) -> tuple[pd.Series, Path]:
        """Return the cells of a group's column; an age is the year of the study minus that of the birth."""
        cells, file = super().group_cells(group, reading)
        if group.name != "age" or group.column != self.group_columns["age"]:
            return cells, file
        dates, _ = super().group_cells(replace(group, column=STUDY), reading)
        years = pd.to_numeric(dates, errors="coerce") // 10_000
        return years - pd.to_numeric(cells, errors="coerce"), file

    def _label_file(self) -> Path:
        # An unpacked copy is preferred to the archive that it came from.
        files = next((files for pattern in self.needs if (files := sorted(self.root.glob(pattern)))), [])
        if not files:
            raise MissingFileError(f"{self.root}: found {contents(self.root)}; {self.layout}")
        if len(files) > 1:
            names = listed(path.name for path in files)
            raise DataError(f"{self.root}: expected one label file, found {names}. Keep one")
        return files[0]


def _checked_phrases(findings: list[str]) -> tuple[str, ...]:
    phrases = tuple(" ".join(phrase.split()) for phrase in findings)
    if not all(phrases) or len({phrase.casefold() for phrase in phrases}) != len(phrases) or not phrases:
        raise DataError(f"data.findings: expected one or more different phrases, found {findings}")
    return phrases


def _by_physician(table: LabelTable, notes: list[str]) -> LabelTable:
    methods = table.rows["MethodLabel"]
    kept = (methods.astype(str).str.strip() == "Physician").to_numpy()
    if not kept.any():
        expected = f"expected 'Physician' in some rows (data.physician_only), found {listed(methods.unique())}"
        raise DataError(f"{table.path}: column 'MethodLabel': {expected}")
    notes.append(f"{(~kept).sum()} of {len(kept)} images of PadChest are not labelled by a physician, left out")
    return table.where(kept)


def _parse_labels(table: LabelTable, phrases: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return the labels of each phrase, [N, L] float32 zeros and ones, NaN if the report leaves the phrase open.

    The second value is the number of images with a label that leaves other findings open.
    """
    patterns = [re.compile(rf"{_before(phrase)}{re.escape(phrase)}(e?s)?(?!\w)", re.IGNORECASE) for phrase in phrases]

    @cache
    def phrases_in(label: str) -> np.ndarray:
        return np.array([pattern.search(label) is not None for pattern in patterns])

    combinations, row_of = np.unique(table.rows["Labels"].fillna("[]").to_numpy(dtype=str), return_inverse=True)
    occurs = np.full((len(combinations), len(phrases)), np.nan, dtype=np.float32)
    leaves_open = np.zeros(len(combinations), dtype=bool)
    for row, combination in enumerate(combinations.tolist()):
        labels = _as_list(combination)
        if labels is None:
            raise DataError(
                f"{table.at(row_of == row)}: column 'Labels': expected a list such as "
                f"['cardiomegaly', 'pleural effusion'], found {combination!r}. Correct it, or empty the cell."
            )
        if labels:
            occurs[row] = np.any([phrases_in(label) for label in labels], axis=0)
            leaves_open[row] = any(label.casefold() in SAYS_NOTHING for label in labels)
    occurs[leaves_open[:, None] & (occurs == 0)] = np.nan
    return occurs[row_of], int(leaves_open[row_of].sum())


def _before(phrase: str) -> str:
    """Return a regular expression of the text that must not precede a phrase."""
    other = APART.get(phrase.casefold())
    return rf"(?<!\w)(?<!{other} )" if other else r"(?<!\w)"


def _as_list(text: str) -> list[str] | None:
    """Return the labels of a Python list of strings, without empty ones; None if the text is not such a list."""
    try:
        labels = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return None
    return [stripped for label in labels if (stripped := " ".join(label.split()))]


def _image_files(root: Path, table: LabelTable) -> list[str]:
    """Return the path of each image; an image that is not next to the label file is expected in its folder.

    The folders and the images may be in ``images/``.
    """
    entries = set(os.listdir(root))
    home = root / "images" if (root / "images").is_dir() else root
    flat = set(os.listdir(home)) if home != root else set()
    pairs = zip(table.rows["ImageDir"], table.rows["ImageID"], strict=True)
    return [
        os.path.join(root, name) if name in entries
        else os.path.join(home, name) if name in flat
        else os.path.join(root if folder in entries else home, folder, name)
        for folder, name in pairs
    ]  # fmt: skip
