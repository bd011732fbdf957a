"""Image files opened: what is no file, and what no picture is made of, is refused in words before it is read."""

import os
import stat
from functools import cache
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from fedlit.data.pictures.dicom import SUFFIXES, has_mark, read_dicom

KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
"""What a name may lead to that is no file."""

PROGRAMS = ("EPS", "WMF")
"""Formats that are no pixels but programs, which another program would have to run."""


@cache
def _formats() -> list[str]:
    Image.init()
    # Those of X-rays first: which format it is, Pillow tries one after the other.
    return sorted((name for name in Image.ID if name not in PROGRAMS), key=lambda name: name not in ("PNG", "JPEG"))


def open_picture(file: str | Path | BinaryIO) -> Image.Image:
    """Open an image file, or its bytes; a file that would never end is not waited for.

    Raises:
        ValueError: It is no file, an empty one, no image, several pages or frames, or a picture of a single row or column of pixels.
        OSError: It cannot be read.
        ConfigError: It is DICOM, and pydicom, or what decodes its pixels, is not installed.
    """
    named = isinstance(file, str | Path)
    if named and (reason := no_file(file)):
        raise ValueError(f"expected an image file, found {reason}")
    suffix = os.path.splitext(file)[1] if named else getattr(file, "suffix", "")
    if suffix.lower() in SUFFIXES:
        return read_dicom(Path(file) if named else file)
    try:
        image = Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        if named and has_mark(Path(file)):
            return read_dicom(Path(file))
        raise ValueError("no image, or its header is damaged") from None
    if min(image.size) < 2:
        raise ValueError(f"expected a picture, found {image.size[0]} x {image.size[1]} pixels")
    pages = (
        1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    )  # a telephone's photograph has a second, small one
    if pages > 1:
        raise ValueError(f"expected one picture, found {pages} pages or frames: keep one of them")
    return image


def no_file(path: str | Path) -> str:
    """Say what a path leads to where that is no file with content; "" where it is one."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "a link to nothing" if os.path.islink(path) else "nothing"
    except OSError as error:
        return f"a name that leads nowhere ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return KINDS.get(stat.S_IFMT(status.st_mode), "no file")
    return "" if status.st_size else "an empty file"
