"""MedMNIST: an ``.npz`` file with images, labels and official splits.

Yang et al., "MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D biomedical image classification",
Scientific Data 10, 2023, https://medmnist.com.
"""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes
from fedlit.data.partition import ByPatient, Partition
from fedlit.data.pictures.store import ImageStore
from fedlit.data.records import SPLITS, Records, listed
from fedlit.data.xrays.nih import NIHChestXray14

ORGANS = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left", "lung-right",
    "pancreas", "spleen",
)  # fmt: skip
NAMES: dict[str, tuple[str, ...]] = {
    "pathmnist": (
        "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
        "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
    ),
    "chestmnist": NIHChestXray14.labels,
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "breastmnist": ("malignant", "normal, benign"),
    "organamnist": ORGANS, "organcmnist": ORGANS, "organsmnist": ORGANS,
}  # fmt: skip
"""Names of the classes, in the order of the labels; classes of other sets are numbered by default."""

_VERSION = "1"  # part of the cache key: raise it when pixels change


class MedMNIST(FederatedDataModule):
    """A data set of MedMNIST: its ``.npz`` file, of 28 pixels or larger.

    Each value of a label is a class, positive for its own images and negative for the others. The 14 labels of
    ChestMNIST are those of NIH ChestX-ray14, and so are its images. The official split is kept. MedMNIST has no patient
    ids, so each image counts as a patient. For ``ByColumn`` the column is ``image``.

    Args:
        file: The file, such as ``chestmnist.npz`` or ``pathmnist_64.npz``. There is no default, and nothing is
            downloaded.
        labels: Names of the classes, in the order of the labels, if fedlit does not know them.
        classes: The classes to use, in this order; by default all of them.
        image_size: Height and width of the images in pixels; by default those of the file.
        in_chans: Number of channels of the images; by default those of the file: 1 is grey, 3 is RGB.
        partition: The rule that gives each record to a client; by default ``ByPatient`` with four clients.
        **kwargs: Further arguments of FederatedDataModule.
    """

    def __init__(
        self,
        file: Path | None = None,
        labels: list[str] | None = None,
        classes: list[str] | None = None,
        image_size: int | None = None,
        in_chans: int | None = None,
        partition: Partition | None = None,
        **kwargs,
    ):
        if file is None:
            raise DataError("data.file is missing: expected a file of MedMNIST such as chestmnist.npz")
        self.file = Path(file).expanduser()
        self._shapes = _shapes(self.file)
        pictures, targets = self._shapes["train_images"], self._shapes["train_labels"]
        super().__init__(
            ByPatient(4) if partition is None else partition,
            image_size=pictures[1] if image_size is None else image_size,
            in_chans=(3 if len(pictures) == 4 else 1) if in_chans is None else in_chans,
            **kwargs,
        )
        self.several, self.photographs = targets[1] > 1, len(pictures) == 4
        known = NAMES.get(self.file.stem.partition("_")[0].casefold(), ())
        self.labels = tuple(labels) if labels else known or self._numbered()
        if self.several and len(self.labels) != targets[1]:
            raise DataError(f"data.labels: expected {targets[1]} names, found {len(self.labels)}")
        self.classes = checked_classes(list(self.labels) if classes is None else classes, self.labels)

    def records(self) -> Records:
        """Read the file, and store its images in the cache."""
        splits = np.repeat(SPLITS, [self._shapes[f"{split}_images"][0] for split in SPLITS])
        names = np.array([f"{split}-{n:06d}" for split in SPLITS for n in range(self._shapes[f"{split}_images"][0])])
        self.notes = [
            f"{self.file.stem} has no patient ids: each image counts as one patient, and the official split is kept"
        ]
        return Records(
            store=self._store(len(names)),
            names=names,
            labels=self._labels()[:, [self.labels.index(name) for name in self.classes]],
            classes=self.classes,
            patients=names,
            sites=np.full(len(names), self.file.stem.partition("_")[0]),
            splits=splits,
        )

    def _arrays(self, what: str) -> list[np.ndarray]:
        with np.load(self.file, allow_pickle=False) as opened:
            return [opened[f"{split}_{what}"] for split in SPLITS]

    def _numbered(self) -> tuple[str, ...]:
        width = self._shapes["train_labels"][1]
        return tuple(
            map(str, range(width if self.several else int(max(part.max() for part in self._arrays("labels"))) + 1))
        )

    def _labels(self) -> np.ndarray:
        """Return the labels, [N, L] float32."""
        labels = np.concatenate(self._arrays("labels")).astype(np.int64)
        top = 1 if self.several else len(self.labels) - 1
        if labels.min() < 0 or labels.max() > top:
            raise DataError(
                f"{self.file}: expected labels from 0 to {top}, found {labels.min()} to {labels.max()}; data.labels "
                f"names the classes, now {listed(self.labels, 20)}"
            )
        return (labels if self.several else labels == np.arange(len(self.labels))).astype(np.float32)

    def _store(self, count: int) -> ImageStore:
        status = self.file.stat()
        channels = 3 if len(self._shapes["train_images"]) == 4 else 1
        shape = (count, channels, self.image_size, self.image_size)
        text = f"{_VERSION} {shape} {self.file.absolute()} {status.st_size} {status.st_mtime_ns}"

        def write(out: np.memmap) -> None:
            row = 0
            for pictures in self._arrays("images"):
                for picture in pictures:
                    image = Image.fromarray(picture)
                    if image.size != shape[:1:-1]:
                        image = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
                    pixels = np.asarray(image)
                    out[row] = pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)
                    row += 1

        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        return ImageStore.cached(f"medmnist-{self.image_size}-{key}", shape, write, self.cache_dir)


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array in a file of MedMNIST, without reading the images."""
    if not file.is_file():
        raise MissingFileError(f"{file}: no such file; expected a file of MedMNIST, such as chestmnist.npz")
    shapes = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as opened:
                    version = np.lib.format.read_magic(opened)
                    first = np.lib.format.read_array_header_1_0
                    read = first if version == (1, 0) else np.lib.format.read_array_header_2_0
                    shapes[name.removesuffix(".npy")] = read(opened)[0]
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise DataError(f"{file}: expected MedMNIST's .npz file, found: {error}") from None
    wanted = [f"{split}_{what}" for split in SPLITS for what in ("images", "labels")]
    if missing := [name for name in wanted if name not in shapes]:
        raise DataError(f"{file}: expected the arrays of MedMNIST, found {listed(shapes)}, no {missing[0]}")
    for split in SPLITS:
        pictures, labels = shapes[f"{split}_images"], shapes[f"{split}_labels"]
        flat = len(pictures) == 3 or (len(pictures) == 4 and pictures[3] == 3)
        if not flat or len(labels) != 2 or labels[0] != pictures[0]:
            raise DataError(
                f"{file}: expected {split}_images [N, height, width] or [N, height, width, 3] and {split}_labels [N, "
                f"L], found {list(pictures)} and {list(labels)}; MedMNIST's three-dimensional sets are not supported"
            )
    return shapes
