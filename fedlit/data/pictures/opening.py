"""Opening of image files; anything that is not an image file is an error before it is read."""

import os
import stat
from functools import cache
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from fedlit.core.errors import DataError
from fedlit.data.pictures.dicom import SUFFIXES, has_mark, read_dicom

KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
"""Kinds of paths that are not regular files."""

PROGRAMS = ("EPS", "WMF")
"""Formats that hold programs instead of pixels."""


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
