"""Inspection of one image file by its header, or by decoding it."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlit.core.errors import ConfigError
from fedlit.data.pictures.dicom import is_dicom, open_dicom, refuse_other
from fedlit.data.pictures.pixels import THUMB, not_a_file, open_picture, read_image

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
