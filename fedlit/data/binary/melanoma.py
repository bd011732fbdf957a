"""Melanoma: the skin lesions of SIIM-ISIC 2020 in the layouts of their downloads."""

from pathlib import Path

import numpy as np

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import ByPatient, Partition
from fedlit.data.pictures.images import decode_images
from fedlit.data.records import Records, contents
from fedlit.data.tables import LabelTable, numbers, read_table, refuse_repeats

LABEL_FILES = ("train.csv", "ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_GroundTruth.csv")
FOLDERS = ("jpeg/train", "ISIC_2020_Training_JPEG/train", "ISIC_2020_Training_JPEG", "train", ".")
WORDS = {"benign": 0.0, "malignant": 1.0}


class Melanoma(FederatedDataModule):
    """SIIM-ISIC 2020: 33,126 dermoscopic images of 2,056 patients, 584 of them (1.8%) of a melanoma. One class.

    Rotemberg et al., "A patient-centric dataset of images and metadata for identifying melanomas using clinical
    context", Scientific Data 2021, https://challenge2020.isic-archive.com. The folder has the layout of Kaggle or of
    the ISIC archive, whose label file may be either version:

    ::

        train.csv                        ISIC_2020_Training_GroundTruth_v2.csv, or ISIC_2020_Training_GroundTruth.csv
        jpeg/train/ISIC_0015719.jpg      train/ISIC_0015719.jpg, also below ISIC_2020_Training_JPEG/
        ...                              ...

    The columns ``image_name`` (without .jpg), ``patient_id`` and ``target`` (1 is malignant) are required. ``ByColumn``
    may use ``sex``, ``age_approx``, ``anatom_site_general_challenge``, ``diagnosis`` and ``benign_malignant`` (and
    ``lesion_id``). All images are kept, including those that the archive lists as duplicates. The test images of the
    challenge have no labels, so patients are divided by ``split``. Images are squeezed to squares.

    Args:
        root: The folder of the download. There is no default, and nothing is downloaded.
        partition: The rule that gives each record to a client; by default ``ByPatient`` with four clients.
        in_chans: Number of channels of the images: 3 is RGB, 1 is grey.
        **kwargs: Further arguments of FederatedDataModule.
    """

    classes = ("Melanoma",)
    photographs = True
    layout = (
        f"expected {LABEL_FILES[0]}, {LABEL_FILES[1]} or {LABEL_FILES[2]}, and images such as ISIC_0015719.jpg in "
        f"{', '.join(f'{folder}/' for folder in FOLDERS[:-1])} or next to it"
    )

    def __init__(self, root: Path | None = None, partition: Partition | None = None, in_chans: int = 3, **kwargs):
        super().__init__(ByPatient(4) if partition is None else partition, in_chans=in_chans, **kwargs)
        if root is None:
            raise DataError(f"data.root is missing: {self.layout}")
        self.root = Path(root).expanduser()

    def records(self) -> Records:
        """Read the label file and decode the images into the cache as RGB."""
        file = next((self.root / name for name in LABEL_FILES if (self.root / name).is_file()), None)
        if file is None:
            raise MissingFileError(f"{self.root}: found {contents(self.root)}; {self.layout}")
        table = read_table(file, ("image_name", "patient_id", "target"), ("image_name", "patient_id"))
        refuse_repeats(table, "image_name")
        names = table.rows["image_name"].to_numpy(dtype=str)
        return Records(
            store=decode_images(self._files(names), self.image_size, 3, self.cache_dir),
            names=names,
            labels=_targets(table),
            classes=self.classes,
            patients=table.rows["patient_id"].to_numpy(dtype=str),
            sites=np.full(len(names), "ISIC"),
            table=table.rows,
        )

    def _files(self, names: np.ndarray) -> list[Path]:
        """Return the path of each image; a missing image is expected in the first folder."""
        folders = [self.root / folder for folder in FOLDERS if (self.root / folder).is_dir()]
        folder_of = {file.name: folder for folder in reversed(folders) for file in folder.glob("*.jpg")}
        return [folder_of.get(f"{name}.jpg", folders[0]) / f"{name}.jpg" for name in names.tolist()]


def _targets(table: LabelTable) -> np.ndarray:
    """Return the labels [N, 1] of the column ``target`` after comparing it with ``benign_malignant``."""
    labels = numbers(table, ["target"], (0, 1))
    blank = np.isnan(labels[:, 0])
    if blank.any():
        lines = f"{blank.sum()} such lines"
        raise DataError(f"{table.at(blank)}: column 'target' is empty ({lines}). Fill in 0 or 1, or remove the line.")
    if "benign_malignant" in table.rows:
        words = table.rows["benign_malignant"].fillna("")
        wrong = (words.map(WORDS) != labels[:, 0]).to_numpy()
        if wrong.any():
            raise DataError(
                f"{table.at(wrong)}: column 'target' is {labels[wrong][0, 0]:g}, but column 'benign_malignant' is "
                f"{words[wrong].iloc[0]!r} ({wrong.sum()} such lines); expected 0 with benign, 1 with malignant."
            )
    return labels
