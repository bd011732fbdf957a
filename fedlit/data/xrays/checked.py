"""The result of the check of a folder of X-rays, and the inspection of one image by its header or by decoding it."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.data.labels import UNCERTAIN, harmonised_names
from fedlit.data.pictures.dicom import is_dicom, open_dicom, refuse_other
from fedlit.data.pictures.pixels import THUMB, not_a_file, open_picture, read_image
from fedlit.data.pictures.store import Thumbs
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.reading import Reading

IMAGES = (".png", ".jpg", ".jpeg")
"""Suffixes that identify the format, so that a file need not be opened twice."""

LARGE = 4096
"""Number of bytes from which on an element of a DICOM file is not read as a part of its header."""

_GREY_16 = (16, "grey")
# Some versions of Pillow open a PNG of 16 bits as "I".
_KINDS = {
    "1": (1, "grey"), "L": (8, "grey"), "LA": (8, "grey with alpha"), "P": (8, "palette"), "I": _GREY_16,
    "I;16": _GREY_16, "I;16B": _GREY_16, "F": (32, "floating point"),
}  # fmt: skip

SHOWN = 5
"""Number of places that are listed for each problem; the others are counted."""

LEAK = (
    "a patient in two splits or at two sites leaks; RSNA Pneumonia and SIIM Pneumothorax images are NIH images. "
    "Remove one of each"
)


@dataclass(frozen=True)
class Picture:
    """The properties of an image file, from its header or from decoding it.

    Attributes:
        format: Format of the file, such as PNG; "" if it cannot be opened.
        bits: Number of bits of a pixel in one channel.
        colour: Meaning of the channels, such as grey.
        size: Width and height in pixels.
        digest: Digest of the pixels at a small size, equal for equal images; "" if nothing was decoded.
        problem: The reason why the file cannot be used, or "".
    """

    format: str = ""
    bits: int = 0
    colour: str = ""
    size: tuple[int, int] = (0, 0)
    digest: str = ""
    problem: str = ""

    @property
    def is_deep(self) -> bool:
        """True if the pixels have more than 8 bits, and the file does not declare how many are used."""
        return self.bits > 8 and self.format != "DICOM" and not self.problem

    @property
    def kind(self) -> str:
        """Format, bit depth and colour as text."""
        return f"{self.format}, {self.bits}-bit {self.colour}"


def inspect_image(file: str, decode: bool = False, keep: Callable[[np.ndarray], None] | None = None) -> Picture:
    """Read the header of an image file and, if ``decode`` is true, its pixels.

    Args:
        file: The image file.
        decode: Decode the pixels.
        keep: A function that takes the pixels, uint8 [1, 128, 128].

    Raises:
        ConfigError: The file is DICOM, and pydicom is not installed.
    """
    try:
        header = _header(file)
    except ConfigError:  # the file is not to blame
        raise
    except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, struct.error...
        return Picture(problem=str(error))
    if header[2] == "floating point":
        return Picture(*header, problem="floating point pixels; convert it to 8 or 16 bits")
    if not decode:
        return Picture(*header)
    try:
        pixels = read_image(file, THUMB)
    except Exception as error:
        return Picture(*header, problem=f"cannot be decoded: {error}")
    if pixels.min() == pixels.max():
        return Picture(*header, problem=f"shows nothing: all pixels are {pixels.min()} of 255")
    if keep is not None:
        keep(pixels)
    return Picture(*header, digest=hashlib.sha256(pixels.tobytes()).hexdigest())


def _header(file: str) -> tuple[str, int, str, tuple[int, int]]:
    if os.path.splitext(file)[1].lower() not in IMAGES and not not_a_file(file) and is_dicom(Path(file)):
        header = open_dicom(Path(file), defer_size=LARGE)
        refuse_other(header)
        return "DICOM", int(header.BitsStored), str(header.PhotometricInterpretation), (header.Columns, header.Rows)
    with open_picture(file) as image:
        return (image.format or "", *_KINDS.get(image.mode, (8, image.mode)), image.size)


@dataclass(frozen=True)
class Problem:
    """A sentence about a mistake, and the places where it occurs; ``all_shown`` if each of them needs a hand."""

    text: str
    places: Sequence[str] = ()
    all_shown: bool = False


@dataclass
class Check:
    """The result of the check of a folder.

    Attributes:
        reader: The reader of the data set.
        decoded: True if the images were decoded, not only opened.
        reading: The content of the label files; None if they cannot be read.
        pictures: The image file of each image of the reading; None if a file is missing.
        thumbs: Thumbnails of the images, if they were decoded.
        problems: Mistakes.
        remarks: Facts that are not mistakes but good to know.
        images: Number of images by client and split, as ``fit`` divides them; None if it could not.
        positives: Number of positives of each class by client and split, NaN where no image is labelled for the class.
    """

    reader: ChestXrays
    decoded: bool = False
    reading: Reading | None = None
    pictures: list[Picture | None] = field(default_factory=list)
    thumbs: Thumbs | None = None
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    images: pd.DataFrame | None = None
    positives: pd.DataFrame | None = None

    @property
    def opened(self) -> list[Picture]:
        """The image files whose header could be read."""
        return [picture for picture in self.pictures if picture is not None and picture.format]

    def add_leak(self, problem: Problem) -> None:
        """Add copies of images as a problem, or as a remark if the arguments allow copies."""
        if self.reader.duplicates == "allow":
            self.remarks += ["; ".join([problem.text, *problem.places[:SHOWN]])]
        else:
            self.problems.append(problem)

    def groups(self) -> pd.DataFrame:
        """Return the numbers of images and patients by group and value, and by site; "" is an unknown group."""
        reading = self.reading
        sites = np.full(len(reading.names), self.reader.source) if reading.sites is None else reading.sites
        rows = pd.DataFrame({"site": sites, "patient": reading.patients})
        parts = {
            name: rows.groupby([pd.Series(values, name="value"), "site"])["patient"].agg(["size", "nunique"])
            for name, values in reading.groups.items()
        }
        counts = pd.concat(parts, names=["group"]).rename(columns={"size": "images", "nunique": "patients"})
        return counts.unstack("site", fill_value=0).swaplevel(axis=1)

    def labels(self) -> pd.DataFrame:
        """Return one row for each label of the source: numbers of images by value, and the prevalence.

        The column ``harmonised`` is the class of ``fedlit list labels`` that the label is, or is a part of, or "" if
        there is no such class. The column ``prevalence`` is the share of positives among all images.
        """
        names, values = _harmonised(self.reader.source), self.reading.labels
        masks = {"positives": values == 1, "negatives": values == 0, "uncertain": values == UNCERTAIN}
        counts = {name: mask.sum(axis=0) for name, mask in (masks | {"blank": np.isnan(values)}).items()}
        harmonised = [names.get(label, "") for label in self.reader.labels]
        prevalence = counts["positives"] / max(len(values), 1)
        columns = {"harmonised": harmonised, **counts, "prevalence": prevalence}
        return pd.DataFrame(columns, index=pd.Index(self.reader.labels, name="label"))


def _harmonised(source: str) -> dict[str, str]:
    """Return the harmonised name of each label of a source that has one."""
    names: dict[str, str] = {}
    for name, of in harmonised_names(source).items():
        names |= dict.fromkeys([of] if isinstance(of, str) else chain.from_iterable(of.values()), name)
    return names
