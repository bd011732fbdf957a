"""The pixels of one image file; anything that is not an image file is an error before it is read."""

import os
import stat
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fedlit.core.errors import DataError
from fedlit.data.pictures.dicom import SUFFIXES, has_mark, read_dicom

DEPTH = 16
"""Default number of used bits of pixels with more than 8 bits."""

SIDE = 64
"""Height and width of the small images that are compared with each other."""

THUMB = 128
"""Height and width at which a check decodes images: enough to detect a border of a few percent."""

DRAFT = 2
"""Smallest size at which a JPEG is decoded, as a multiple of the wanted size."""

TIFF_BITS, TIFF_PHOTOMETRIC = 258, 262
"""Tags of a TIFF: bits per sample, and the meaning of its values: 0 if white is zero."""

Resize = Literal["squeeze", "pad"]
"""Rule for images that are not square: their shape is changed, or they get black borders."""

KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
"""Kinds of paths that are not regular files."""

PROGRAMS = ("EPS", "WMF")
"""Formats that hold programs instead of pixels."""


def read_image(
    file: str | Path | BinaryIO, image_size: int, channels: int = 1, depth: int = DEPTH, resize: Resize = "squeeze"
) -> np.ndarray:
    """Read one image file as uint8 [channels, image_size, image_size].

    The image is rotated as its EXIF orientation says, and resized with antialiasing. If it is not square, it is
    squeezed, or keeps its shape between black borders of equal width. Colour becomes grey if ``channels`` is 1, and
    transparency is dropped. Pixels of more than 8 bits are scaled by ``depth``, so that white is the same in all files
    of a data set, however dark one of them is. A JPEG that is more than four times as large is decoded at a half, a
    quarter or an eighth of its size, but at least at twice the wanted size. This is faster and changes pixels by about
    one grey level.

    Args:
        file: The image file, or its bytes.
        image_size: Height and width in pixels.
        channels: Number of channels: 1 (grey) or 3 (RGB).
        depth: Number of bits that a data set uses of pixels with more than 8.
        resize: Rule for images that are not square, ``squeeze`` or ``pad``.

    Raises:
        DataError: The file cannot be decoded, or a pixel has more bits than ``depth``.
    """
    with open_picture(file) as image:
        deep_colour = _has_16_bits_of_colour(image)
        if image.format == "JPEG":
            image.draft("L" if channels == 1 else "RGB", (DRAFT * image_size, DRAFT * image_size))
        if image.format == "JPEG" and image.mode in ("L", "RGB"):
            image = _decoded(image)
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if deep_colour and depth < DEPTH:
            raise DataError(
                f"expected grey pixels, or colours of 8 bits, because depth is {depth}; found colours of 16 bits, of "
                "which only the upper 8 can be read; convert it to 8 bits"
            )
        if image.mode.startswith("I"):
            image = _eight_bits(image, depth)
        elif image.mode == "F":
            raise DataError("expected integer pixels, found floating point: convert it to 8 or 16 bits")
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (image_size, image_size):
            image = _SQUARE[resize](image, (image_size, image_size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)


_SQUARE = {"squeeze": Image.Image.resize, "pad": ImageOps.pad}


def _has_16_bits_of_colour(image: Image.Image) -> bool:
    """Return whether Pillow will drop the lower bits of a file's colours, before it is loaded."""
    coded = image.tile[0][3] if getattr(image, "tile", None) else ""
    return ";16" in str(coded[0] if isinstance(coded, tuple) else coded) and not image.mode.startswith("I")


def _decoded(image: Image.Image) -> Image.Image:
    """Decode an opened JPEG at the size of its draft, to the same pixels as Pillow, but refuse damage.

    Pillow passes over libjpeg's warnings, so that the missing part of a file with an end marker would be grey.

    Raises:
        DataError: libjpeg warns about the file.
    """
    image.fp.seek(0)
    height, width = image.size[::-1]
    colours = "GRAY" if image.mode == "L" else "RGB"
    try:
        pixels = simplejpeg.decode_jpeg(image.fp.read(), colours, min_height=height, min_width=width)
    except ValueError as error:
        raise DataError(f"the JPEG is damaged: {error}") from None
    decoded = Image.fromarray(pixels[..., 0] if colours == "GRAY" else pixels)
    decoded.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
    return decoded


def _eight_bits(image: Image.Image, depth: int) -> Image.Image:
    pixels = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    depth = min(depth, *tags.get(TIFF_BITS, (DEPTH,)))
    darkest, brightest = int(pixels.min()), int(pixels.max())
    if darkest < 0 or brightest >= 2**16:
        raise DataError(f"expected pixels of up to 16 bits, found {darkest} to {brightest}")
    if brightest >= 2**depth:
        raise DataError(f"expected pixels of {depth} bits (depth), below {2**depth:,}, not {brightest:,}")
    if tags.get(TIFF_PHOTOMETRIC) == 0:  # Pillow inverts white as zero for 8 bits alone
        pixels = 2**depth - 1 - pixels
    return Image.fromarray(_scale(depth)[pixels])


@cache
def _scale(depth: int) -> np.ndarray:
    """Return 8 bits for each value of ``depth`` bits, [2 ** depth] uint8; this is ten times as fast as arithmetic."""
    return np.round(np.arange(2**depth) * (255 / (2**depth - 1))).astype(np.uint8)


@cache
def _formats() -> list[str]:
    Image.init()
    # Formats of X-rays first, because Pillow tries one format after the other.
    return sorted((name for name in Image.ID if name not in PROGRAMS), key=lambda name: name not in ("PNG", "JPEG"))


def open_picture(file: str | Path | BinaryIO) -> Image.Image:
    """Open an image file, or its bytes, without waiting for endless files such as pipes.

    Raises:
        DataError: It is not a regular file, is empty, is not an image, has several pages or frames, or has a single
            row or column of pixels.
        OSError: The file cannot be read.
        ConfigError: The file is DICOM, and pydicom or the decoder of its pixels is not installed.
    """
    named = isinstance(file, str | Path)
    if named and (reason := not_a_file(file)):
        raise DataError(f"expected an image file, found {reason}")
    suffix = os.path.splitext(file)[1] if named else getattr(file, "suffix", "")
    if suffix.lower() in SUFFIXES:
        return read_dicom(Path(file) if named else file)
    try:
        image = Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        if named and has_mark(Path(file)):
            return read_dicom(Path(file))
        raise DataError("not an image, or its header is damaged") from None
    if min(image.size) < 2:
        raise DataError(f"expected an image, found {image.size[0]} x {image.size[1]} pixels")
    # A photograph of a phone (MPO) has a second, small image.
    pages = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if pages > 1:
        raise DataError(f"expected one image, found {pages} pages or frames: keep one")
    return image


def not_a_file(path: str | Path) -> str:
    """Return a description of a path that is not a file with content, or "" if it is one."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "a link to nothing" if os.path.islink(path) else "nothing"
    except OSError as error:
        return f"a name that leads nowhere ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return KINDS.get(stat.S_IFMT(status.st_mode), "no file")
    return "" if status.st_size else "an empty file"
