"""Images in folders of classes, as torchvision's ``ImageFolder`` has them."""

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.own.cells import SPLITS
from fedlit.data.partition import Partition
from fedlit.data.pictures.cache import cache_folder
from fedlit.data.pictures.duplicates import Duplicates, notes_of_copies
from fedlit.data.records import Records, contents, listed
from fedlit.data.spelling import SUFFIXES
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.reading import Reading

MASKS = re.compile(
    r"((lungs?|infection|ground[ _-]?truth)[ _-]?)?(masks?|segmentations?|annotations?|gt)", re.IGNORECASE
)
"""Names of folders of masks."""

MASK_OF = re.compile(r"[ _-]?(mask|segmentation|seg)$", re.IGNORECASE)
"""End of the name of a mask in the folder of its picture, without the suffix."""

PICTURES = {"images", "image", "imgs", "img", "pictures"}

LAYOUT = "expected a folder of images for each class (NORMAL/1.png), or such folders in train/, val/ and test/"


class ClassFolders(ChestXrays):
    r"""Images in one folder per class: an image is positive for its own class and negative for the others.

    The folders of classes may be in ``train/``, ``val/`` (``valid/``, ``validation/``) and ``test/``, which are then
    the official split. Images may be in subfolders of a class. ``classes: [PNEUMONIA]`` makes one class of two folders.
    For ``ByColumn`` the columns are ``image``, ``class`` and ``folder``, the subfolder of the class.

    Folders and files of masks (``COVID/masks/``, ``1_mask.png``) are left out and counted in the notes.

    Args:
        root: The folder. There is no default.
        patient: A regular expression whose only group is the patient in an image's path below ``root``, such as
            ``person(\d+)``; by default each image is a patient of its own.
        colour: Keep the images in colour; if false, they become grey.
        duplicates: Rule for one image under two patients, also recompressed or resized: ``refuse`` is an error,
            ``allow`` a warning. If the folder names no patients, any two equal images are such images.
        partition: The rule that gives each record to a client; by default ``ByPatient`` with four clients.
        in_chans: Number of channels of the images: 3 is RGB, 1 is grey.
        **kwargs: Further arguments of ChestXrays.
    """

    source = "folders"
    layout = LAYOUT

    def __init__(
        self,
        root: Path | None = None,
        patient: str | None = None,
        colour: bool = True,
        partition: Partition | None = None,
        in_chans: int = 3,
        duplicates: Duplicates = "refuse",
        **kwargs,
    ):
        if root is None:
            raise DataError(f"data.root is missing: {LAYOUT}")
        try:
            self.patient = None if patient is None else re.compile(patient)
        except re.error as error:
            raise DataError(f"data.patient: expected a regular expression, not {patient!r}: {error}") from None
        if self.patient is not None and self.patient.groups != 1:
            raise DataError(
                f"data.patient: expected one group, as in person(\\d+), found {self.patient.groups} in {patient!r}"
            )
        self.colour = self.photographs = colour
        self.channels = 3 if colour else 1
        self._files, self._masks = _without_masks(_images_of_classes(Path(root).expanduser()))
        self.labels = tuple(dict.fromkeys(sorted(each[1] for each in self._files)))
        super().__init__(root, partition=partition, in_chans=in_chans, **kwargs)
        self.duplicates = duplicates

    @classmethod
    def lies_in(cls, root: Path) -> bool:
        """Return True, because any folder may hold folders of classes."""
        return True

    @classmethod
    def recognises(cls, root: Path) -> bool:
        """Return whether a folder has folders of images that may be classes."""
        try:
            return len({name for _, name, _ in _without_masks(_images_of_classes(root))[0]}) > 1
        except (DataError, MissingFileError):
            return False

    def records(self) -> Records:
        """List the folders, decode the images, and search for images that belong to two patients."""
        records = super().records()
        self.notes += notes_of_copies(cache_folder(self.cache_dir), self.duplicates, [self.root.name], [records])
        return records

    def read(self) -> Reading:
        """List the folders; no image is opened."""
        splits, classes, paths = (np.array(column, dtype=str) for column in zip(*self._files, strict=True))
        depth = 2 if splits[0] else 1
        inside = ["/".join(path.split("/")[depth:-1]) for path in paths.tolist()]
        counts = ", ".join(f"{count:,} {name}" for name, count in Counter(classes.tolist()).items())
        notes = [f"{self.root.name}: {counts}"]
        if self._masks:
            notes.append(f"{len(self._masks)} files of masks are left out, the first are {listed(self._masks, 3)}")
        if self.patient is None:
            notes.append(f"{self.root.name} names no patients: each image counts as one (data.patient)")
        return Reading(
            files=[self.root / path for path in paths],
            names=paths,
            patients=paths if self.patient is None else self._patients(paths),
            labels=(classes[:, None] == np.array(self.labels)).astype(np.float32),
            source=self.root,
            splits=splits if splits[0] else None,
            table=pd.DataFrame({"image": paths, "class": classes, "folder": inside}),
            notes=notes,
        )

    def _patients(self, paths: np.ndarray) -> np.ndarray:
        matches = [self.patient.search(path) for path in paths]
        if None in matches:
            without = paths[[match is None for match in matches]]
            raise DataError(
                f"data.patient: {self.patient.pattern!r} is not in {len(without)} of {len(paths)} paths, the first are "
                f"{listed(without, 3)}"
            )
        return np.array([match[1] for match in matches], dtype=str)


def _without_masks(files: list[tuple[str, str, str]]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Divide the images of classes into pictures and the paths of masks, by the names of folders and files.

    Raises:
        DataError: The folders of the top are images and their masks, which are not classes.
    """
    classes = {name for _, name, _ in files}
    if masks := sorted(
        name for name in classes if MASKS.fullmatch(name) and PICTURES.intersection(map(str.casefold, classes))
    ):
        raise DataError(
            f"expected folders of classes, found images and masks: {listed(sorted(classes))}; {listed(masks)} is no "
            "class"
        )
    paths = {os.path.splitext(path)[0] for *_, path in files}
    masks = []
    for split, _, path in files:
        inside = path.split("/")[2 if split else 1 : -1]
        stem = os.path.splitext(path)[0]
        if any(map(MASKS.fullmatch, inside)) or (MASK_OF.search(stem) and MASK_OF.sub("", stem) in paths):
            masks.append(path)
    left_out = set(masks)
    return [each for each in files if each[2] not in left_out], masks


def _images_of_classes(root: Path) -> list[tuple[str, str, str]]:
    """Return the split (or ""), the class and the path of each image, in order."""
    if not root.is_dir():
        raise MissingFileError(f"{root}: {'a file, not a folder' if root.is_file() else 'no such folder'}; {LAYOUT}")
    folders = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    parts = {folder: SPLITS[folder.name.casefold()] for folder in folders if folder.name.casefold() in SPLITS}
    if parts and len(parts) < len(folders):
        others = [folder.name for folder in folders if folder not in parts]
        raise DataError(
            f"{root}: expected folders of splits or of classes, found both: "
            f"{listed([folder.name for folder in parts])} and {listed(others)}"
        )
    entries = []
    for part, split in (parts or {root: ""}).items():
        for folder in sorted(part.iterdir()):
            if not folder.is_dir() or folder.name.startswith("."):
                continue
            images = [
                file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES and file.name[0] != "."
            ]
            if not images:
                raise MissingFileError(f"{folder}: no image ({', '.join(SUFFIXES)}), but {contents(folder)}")
            entries += [(split, folder.name, file.relative_to(root).as_posix()) for file in images]
    if len({name for _, name, _ in entries}) < 2:
        raise MissingFileError(f"{root}: found {contents(root)}; {LAYOUT}")
    return entries
