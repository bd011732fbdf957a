"""VinDr-CXR in the layout of its official download.

Nguyen et al., "VinDr-CXR: An open dataset of chest X-rays with radiologist's annotations", Scientific Data 9, 2022,
https://physionet.org/content/vindr-cxr/.
"""

import os
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.data.dicom import SUFFIXES as DICOM
from fedlit.data.records import listed
from fedlit.data.tables import Table, numbers, read_table, refuse_repeats
from fedlit.data.xrays import ChestXrays, Reading

Vote = Literal["any", "majority", "unanimous"]
READERS = 3
_FOLDERS = {"train": "train_val", "test": "test"}
# Where an image is there in several formats, the first wins.
_SUFFIXES = (".png", ".jpg", ".jpeg", *DICOM)
_COLUMNS = {"Other disease": "Other diseases"}


class VinDrCXR(ChestXrays):
    """VinDr-CXR: 18,000 frontal chest X-rays of two hospitals in Hanoi with 27 findings, read by radiologists.

    Three radiologists read each of the 15,000 training images by themselves, and `vote` makes one label of three; the
    3,000 test images have the consensus of five. "No finding" is no class. No patient id is released, so each image
    counts as a patient. The official split is that of the two folders, with part of `train` for validation. For
    `ByColumn` the columns are `image_id`, `folder` (`train` or `test`) and `rad_id`, the radiologists as in `R10|R8|R9`
    (`consensus` in `test`).

    Args:
        root: The folder with `annotations/image_labels_train.csv`, `annotations/image_labels_test.csv`, and the images
            `<image_id>` in `train/` and `test/`: `.png`, `.jpg`, or `.dicom` as released, which needs
            `pip install 'fedlit[dicom]'`. There is no default.
        vote: When a finding of several radiologists is positive: by `any` of them, by the `majority` (more than half)
            or only if `unanimous`.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "VinDr"
    labels = (
        "Aortic enlargement",
        "Atelectasis",
        "Calcification",
        "Cardiomegaly",
        "Clavicle fracture",
        "Consolidation",
        "Edema",
        "Emphysema",
        "Enlarged PA",
        "ILD",
        "Infiltration",
        "Lung Opacity",
        "Lung cavity",
        "Lung cyst",
        "Mediastinal shift",
        "Nodule/Mass",
        "Pleural effusion",
        "Pleural thickening",
        "Pneumothorax",
        "Pulmonary fibrosis",
        "Rib fracture",
        "Other lesion",
        "COPD",
        "Lung tumor",
        "Pneumonia",
        "Tuberculosis",
        "Other diseases",
    )
    layout = (
        "expected the official layout of VinDr-CXR: annotations/image_labels_train.csv with train/<image_id>.dicom "
        "(or .png, .jpg), and annotations/image_labels_test.csv with test/"
    )
    needs = ("annotations/image_labels_train.csv", "annotations/image_labels_test.csv")

    def __init__(self, root: Path | None = None, vote: Vote = "majority", **kwargs):
        super().__init__(root, **kwargs)
        if vote not in _VOTES:
            raise ValueError(f"data.vote: expected any, majority or unanimous, found {vote!r}")
        self.vote = vote

    def read(self) -> Reading:
        sources = {folder: self.root / "annotations" / f"image_labels_{folder}.csv" for folder in _FOLDERS}
        sources = {folder: file for folder, file in sources.items() if file.is_file()}
        if not sources:
            found = sorted(path.name for path in self.root.iterdir())
            raise FileNotFoundError(
                f"{self.root}: found {listed(found) if found else 'an empty folder'}; {self.layout}"
            )
        notes = [
            f"{self.source} releases no patient ids: each image counts as a patient of its own, "
            "and images of one person may be in several splits and clients"
        ]
        parts = [self._read_folder(folder, file, notes) for folder, file in sources.items()]
        reading = Reading(
            files=[file for part in parts for file in part.files],
            names=np.concatenate([part.names for part in parts]),
            patients=np.concatenate([part.patients for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            source=parts[0].source,
            splits=np.concatenate([part.splits for part in parts]) if len(parts) > 1 else None,
            table=pd.concat([part.table for part in parts], ignore_index=True),
            notes=notes,
        )
        if len(parts) == 1:
            notes.append(f"only {reading.source.name} is there: the images are divided by data.split")
        both = reading.names[pd.Series(reading.names).duplicated()]
        if len(both):
            raise ValueError(
                f"{self.root / 'annotations'}: {len(both)} images are in both label files, the first are "
                f"{listed(both, 3)}. Keep each in one of them."
            )
        return reading

    def _read_folder(self, folder: str, file: Path, notes: list[str]) -> Reading:
        by_reader = folder == "train"
        needed = ("image_id", "rad_id", *self.labels) if by_reader else ("image_id", *self.labels)
        table = read_table(file, needed, ("image_id", "rad_id") if by_reader else ("image_id",), _COLUMNS)
        if by_reader:
            _refuse_second_readings(table)
        else:
            refuse_repeats(table, "image_id")
        labels = numbers(table, self.labels, (0, 1))
        image_of, names = pd.factorize(table.rows["image_id"])
        names = names.to_numpy(dtype=str)
        readers = np.bincount(image_of)
        others = int((readers != READERS).sum())
        if by_reader and others:
            notes.append(
                f"{others} of {len(names)} training images of {self.source} have another number of readers than "
                f"{READERS}: {readers.min()} to {readers.max()}"
            )
        radiologists = (
            table.rows.groupby(image_of)["rad_id"].agg(lambda ids: "|".join(sorted(ids))).to_numpy()
            if by_reader
            else "consensus"
        )
        return Reading(
            files=_image_files(self.root / folder, names),
            names=names,
            patients=names,
            labels=_votes(labels, image_of, len(names), self.vote),
            source=file,
            splits=np.full(len(names), _FOLDERS[folder]),
            table=pd.DataFrame({"image_id": names, "folder": folder, "rad_id": radiologists}),
        )


_VOTES = {
    "any": lambda positive, readers: positive > 0,
    "majority": lambda positive, readers: 2 * positive > readers,
    "unanimous": lambda positive, readers: positive == readers,
}


def _votes(labels: np.ndarray, image_of: np.ndarray, images: int, vote: Vote) -> np.ndarray:
    """Labels of readings [R, L] in {0, 1, NaN} as those of images [N, L]; NaN where no reader said anything."""
    positive, readers = np.zeros((2, images, labels.shape[1]))
    np.add.at(positive, image_of, labels == 1)
    np.add.at(readers, image_of, ~np.isnan(labels))
    return np.where(readers > 0, _VOTES[vote](positive, readers), np.nan).astype(np.float32)


def _refuse_second_readings(table: Table) -> None:
    readings = table.rows["image_id"] + " of " + table.rows["rad_id"]
    refuse_repeats(Table(table.path, readings.to_frame("reading"), table.lines), "reading", "the reading")


def _image_files(folder: Path, names: np.ndarray) -> list[Path]:
    """Where each image lies; those that are not there are expected as released."""
    there = {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()
    return [
        folder / next((name + suffix for suffix in _SUFFIXES if name + suffix in there), f"{name}.dicom")
        for name in names.tolist()
    ]
