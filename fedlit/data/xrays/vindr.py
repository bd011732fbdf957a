"""VinDr-CXR in the layout of its official download.

Nguyen et al., "VinDr-CXR: An open dataset of chest X-rays with radiologist's annotations", Scientific Data 9, 2022,
https://physionet.org/content/vindr-cxr/.
"""

import os
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError, DataError, MissingFileError
from fedlit.data.groups import GroupColumn
from fedlit.data.pictures.dicom import SUFFIXES as DICOM
from fedlit.data.pictures.dicom import is_dicom, open_dicom
from fedlit.data.records import contents
from fedlit.data.tables import LabelTable, numbers, read_table, refuse_repeats
from fedlit.data.xrays.base import ChestXrays, refuse_shared
from fedlit.data.xrays.reading import Reading

Vote = Literal["any", "majority", "unanimous"]
READERS = 3
_FOLDERS = {"train": "train_val", "test": "test"}
# If an image exists in several formats, the first of these is used.
_SUFFIXES = (".png", ".jpg", ".jpeg", *DICOM, "")
_COLUMNS = {"Other disease": "Other diseases"}


class VinDrCXR(ChestXrays):
    """VinDr-CXR: 18,000 frontal chest X-rays of two hospitals in Hanoi with 27 findings, read by radiologists.

    Three radiologists read each of the 15,000 training images independently, and ``vote`` makes one label of three. The
    3,000 test images have the consensus of five. "No finding" is not a class. The data set has no patient ids, so each
    image counts as a patient. The official split is that of the two folders, with part of ``train`` for validation. For
    ``ByColumn`` the columns are ``image_id``, ``folder`` (``train`` or ``test``) and ``rad_id``, the radiologists, such
    as ``R10|R8|R9`` (``consensus`` in ``test``).

    Args:
        root: The folder with ``annotations/image_labels_train.csv``, ``annotations/image_labels_test.csv``, and the
            images ``<image_id>`` in ``train/`` and ``test/``: ``.png``, ``.jpg``, or ``.dicom`` as released, which
            needs ``pip install 'fedlit[dicom]'``. There is no default.
        vote: The rule for a positive finding if several radiologists read an image: ``any`` of them, the ``majority``
            (more than half), or ``unanimous`` (all of them). Table 6 of Yuan et al. (arXiv:2102.04635) has the ratios
            of ``any`` on the training images.
        parts: The folders that are read, ``train``, ``test`` or both; by default both.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "VinDr"
    labels = (
        "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture", "Consolidation",
        "Edema", "Emphysema", "Enlarged PA", "ILD", "Infiltration", "Lung Opacity", "Lung cavity", "Lung cyst",
        "Mediastinal shift", "Nodule/Mass", "Pleural effusion", "Pleural thickening", "Pneumothorax",
        "Pulmonary fibrosis", "Rib fracture", "Other lesion", "COPD", "Lung tumor", "Pneumonia", "Tuberculosis",
        "Other diseases",
    )  # fmt: skip
    layout = (
        "expected the official layout of VinDr-CXR: annotations/image_labels_train.csv with train/<image_id>.dicom "
        "(or .png, .jpg), and annotations/image_labels_test.csv with test/"
    )
    group_columns = {"sex": "PatientSex", "age": "PatientAge"}
    needs = ("annotations/image_labels_train.csv", "annotations/image_labels_test.csv")

    def __init__(
        self,
        root: Path | None = None,
        vote: Vote = "majority",
        parts: tuple[Literal["train", "test"], ...] | None = None,
        **kwargs,
    ):
        super().__init__(root, **kwargs)
        parts = tuple(_FOLDERS) if parts is None else parts
        if not parts:
            raise DataError("data.parts: expected train, test or both, found none")
        self.parts = tuple(part for part in _FOLDERS if part in parts)
        self.vote = vote

    def read(self) -> Reading:
        """Read the label files; no image is opened."""
        annotations = self.root / "annotations"
        sources = {x: file for x in self.parts if (file := annotations / f"image_labels_{x}.csv").is_file()}
        if not sources:
            raise MissingFileError(f"{self.root}: found {contents(self.root)}; {self.layout}")
        notes = [
            f"{self.source} releases no patient ids: each image counts as a patient of its own, "
            "and images of one person may be in several splits and clients"
        ]
        tables = {folder: self._read_file(folder, file) for folder, file in sources.items()}
        readings = pd.concat([table.rows[["image_id", "folder", "rad_id"]] for table in tables.values()])
        images = readings[["image_id", "folder"]].drop_duplicates()
        refuse_shared(images["image_id"], annotations, "images are in both label files")
        names, folders = images["image_id"].to_numpy(dtype=str), images["folder"].to_numpy(dtype=str)
        image_of = pd.factorize(readings["image_id"])[0]
        per_image = np.bincount(image_of)[folders == "train"]
        if others := (per_image != READERS).sum():
            notes.append(
                f"{others} of {len(per_image)} training images of {self.source} have another number of readers than "
                f"{READERS}: {per_image.min()} to {per_image.max()}"
            )
        source = next(iter(sources.values()))
        if len(tables) == 1:
            notes.append(f"only {source.name} is there: the images are divided by data.split")
        labels = np.concatenate([numbers(table, self.labels, (0, 1)) for table in tables.values()])
        radiologists = readings.groupby(image_of)["rad_id"].agg(lambda ids: "|".join(sorted(ids)))
        return Reading(
            files=[file for folder in tables for file in _image_files(self.root / folder, names[folders == folder])],
            names=names,
            patients=names,
            labels=_votes(labels, image_of, len(names), self.vote),
            source=source,
            splits=np.array([_FOLDERS[folder] for folder in folders]) if len(tables) > 1 else None,
            table=pd.DataFrame({"image_id": names, "folder": folders, "rad_id": radiologists.to_numpy()}),
            notes=notes,
        )

    def group_cells(self, group: GroupColumn, reading: Reading) -> tuple[pd.Series, Path]:
        """Return the cells of a column; sex and age are in the DICOM headers, where an age of 0 is unknown.

        Raises:
            DataError: No image is a DICOM file.
        """
        if group.column not in self.group_columns.values():
            return super().group_cells(group, reading)
        files = zip(map(Path, reading.files), reading.there, strict=True)
        cells = [_tag(file, group.column) if there and is_dicom(file) else None for file, there in files]
        if all(cell is None for cell in cells):
            raise DataError(
                f"{self.root}: data.groups: expected DICOM files, whose headers have {group.name}, found other images; "
                f"use the files of the release, or remove {group.name} from data.groups"
            )
        return pd.Series([None if re.fullmatch("0+[YMWD]?", cell or "0") else cell for cell in cells]), self.root

    def _read_file(self, folder: str, file: Path) -> LabelTable:
        """Read a label file, with columns ``folder`` and ``rad_id``; the test has the consensus of all radiologists."""
        ids = ("image_id", "rad_id") if folder == "train" else ("image_id",)
        table = read_table(file, (*ids, *self.labels), ids, _COLUMNS)
        if folder == "train":
            reading = (table.rows["image_id"] + " of " + table.rows["rad_id"]).to_frame("reading")
            refuse_repeats(LabelTable(table.path, reading, table.lines), "reading", "the reading")
        else:
            refuse_repeats(table, "image_id")
            table.rows["rad_id"] = "consensus"
        table.rows["folder"] = folder
        return table


def _tag(file: Path, name: str) -> str:
    """Return a value in the header of a DICOM file, or "" if it has none or is damaged, which decoding reports."""
    try:
        return str(open_dicom(file, stop_before_pixels=True, specific_tags=[name]).get(name) or "")
    except ConfigError:
        raise
    except Exception:
        return ""


_VOTES = {
    "any": lambda positive, readers: positive > 0,
    "majority": lambda positive, readers: 2 * positive > readers,
    "unanimous": lambda positive, readers: positive == readers,
}


def _votes(labels: np.ndarray, image_of: np.ndarray, images: int, vote: Vote) -> np.ndarray:
    """Return labels of images, [N, L], from those of readings, [R, L]; NaN if all readings of an image are blank."""
    positive, readers = np.zeros((2, images, labels.shape[1]))
    np.add.at(positive, image_of, labels == 1)
    np.add.at(readers, image_of, ~np.isnan(labels))
    return np.where(readers > 0, _VOTES[vote](positive, readers), np.nan).astype(np.float32)


def _image_files(folder: Path, names: np.ndarray) -> list[Path]:
    """Return the path of each image; a missing image is expected in the format of the release."""
    entries = set(os.listdir(folder)) if folder.is_dir() else set()
    return [
        folder / next((name + suffix for suffix in _SUFFIXES if name + suffix in entries), f"{name}.dicom")
        for name in names.tolist()
    ]
