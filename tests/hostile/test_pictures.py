"""Files that are not images, or cannot be decoded: the check of a folder, training and prediction refuse them."""

import io
import os
import signal
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import refusals
from PIL import Image
from support.hostile import check_printed, spread

from fedlit.core.errors import DataError
from fedlit.data.pictures.images import decode_images, read_image
from fedlit.predictions.scoring import score_files

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position\n"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
NO_IMAGE = "not an image, or its header is damaged"


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def header_of(width: int, height: int) -> bytes:
    """A PNG file that declares this size, and has a thousand bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has few letters
        made.bind(path.name)
        os.chdir(here)


@dataclass(frozen=True)
class Bad:
    """A file that is not an image.

    Attributes:
        what: Short description.
        make: Makes it.
        words: Parts of the reason.
        name: Its name.
    """

    what: str
    make: Callable[[Path], object]
    words: str
    name: str = "9.png"


def content(of: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(of)


BAD = [
    Bad("a named pipe", os.mkfifo, "expected an image file, found a named pipe"),
    Bad("a socket", a_socket, "expected an image file, found a socket"),
    Bad("a folder", Path.mkdir, "expected an image file, found a folder"),
    Bad("a device that never ends", lambda p: p.symlink_to("/dev/zero"), "expected an image file, found a device"),
    Bad("a device that is empty", lambda p: p.symlink_to("/dev/null"), "expected an image file, found a device"),
    Bad("a link to itself", lambda p: p.symlink_to(p.name),
        "a name that leads nowhere (Too many levels of symbolic links)"),
    Bad("a link to a pipe", lambda p: (os.mkfifo(p.with_name("pipe")), p.symlink_to("pipe")), "found a named pipe"),
    Bad("an empty file", content(b""), "expected an image file, found an empty file"),
    Bad("one byte", content(b"\x89"), NO_IMAGE),
    Bad("a text", content(b"hello"), NO_IMAGE),
    Bad("a web page", content(b"<!DOCTYPE html><html>404</html>"), NO_IMAGE),
    Bad("the pointer of a large file", content(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        NO_IMAGE),
    Bad("a program that draws", content(POSTSCRIPT), NO_IMAGE),
    Bad("a header alone", content(saved(Image.fromarray(GREY))[:20]), ""),
    Bad("a PNG cut off", content(saved(Image.fromarray(NOISE))[:1500]), "truncated"),
    Bad("a JPEG cut off", content(saved(Image.fromarray(NOISE), "JPEG")[:1500]), "Premature end"),
    Bad("flipped pixels",
        content(saved(Image.fromarray(NOISE))[:200] + b"\xff" * 64 + saved(Image.fromarray(NOISE))[264:]), ""),
    Bad("a bomb", content(header_of(60_000, 60_000)), "exceeds limit"),
    Bad("one pixel", content(saved(Image.fromarray(GREY[:1, :1]))), "expected an image, found 1 x 1 pixels"),
    Bad("one row", content(saved(Image.fromarray(GREY[:1]))), "expected an image, found 8 x 1 pixels"),
    Bad("floating point", content(saved(Image.fromarray(GREY.astype(np.float32)), "TIFF")), "floating point"),
]  # fmt: skip


@pytest.fixture
def nih(folder: Path) -> Path:
    """A copy of NIH with ten images, the last of which is still missing."""
    (folder / "images").mkdir()
    rows = [f"{n}.png,{'Mass' if n % 2 else 'No Finding'},0,{n},50,M,PA\n" for n in range(10)]
    (folder / "Data_Entry_2017_v2020.csv").write_text(HEADER + "".join(rows))
    for n in range(9):
        (folder / f"images/{n}.png").write_bytes(saved(Image.fromarray(np.roll(GREY, n))))
    signal.alarm(10)  # a pipe would be waited for until the end of days
    yield folder / "images"
    signal.alarm(0)


BY_NAME = {bad.what: bad for bad in BAD}


class TestWhatIsNoPicture:
    @pytest.mark.parametrize("bad", spread(BY_NAME))
    def test_the_check_of_a_folder_names_it(self, bad: Bad, nih: Path, fedlit_cli):
        bad.make(nih / bad.name)
        words = "1 of 10 images cannot be used", f"{bad.name} (Data_Entry_2017_v2020.csv, line 11): ", bad.words
        check_printed(fedlit_cli("data check . --decode"), words, 1)

    @pytest.mark.parametrize("bad", spread(BY_NAME, 1))
    def test_training_refuses_it(self, bad: Bad, nih: Path):
        bad.make(nih / bad.name)
        with pytest.raises((ValueError, FileNotFoundError)) as refused:
            decode_images([nih / f"{n}.png" for n in range(10)], 8, cache_dir=nih / "cache")
        said = str(refused.value)
        assert said.startswith("1 of 10 image files ")
        assert f"{nih}/{bad.name}" in said
        assert bad.words.removeprefix("expected an image file, found ") in said
        assert not [path for path in (nih / "cache").glob("images-*") if path.suffix != ".partial"]

    @pytest.mark.parametrize("bad", spread(BY_NAME, 1))
    def test_prediction_leaves_its_row_empty(self, bad: Bad, nih: Path):
        bad.make(nih / bad.name)
        files = [nih / f"{n}.png" for n in range(10)]
        scores, unreadable = score_files(Mean(), files, lambda done: None)
        assert list(unreadable) == [files[9]]
        assert bad.words in unreadable[files[9]]
        assert np.isnan(scores[:, 0]).tolist() == [False] * 9 + [True]


class Mean:
    """A model whose score is the brightness."""

    classes = ("bright",)
    read = staticmethod(lambda file: read_image(file, 8))
    score = staticmethod(lambda pictures: np.array([[picture.mean()] for picture in pictures]))


GOOD = {
    "cmyk": (saved(Image.fromarray(np.stack([GREY] * 4, -1), "CMYK"), "JPEG"), None),
    "16-bit": (saved(Image.fromarray(GREY.astype(np.uint16) * 1040)),
        np.round(GREY * (1040 * 255 / 65535)).astype(np.uint8)),
    "bilevel": (saved(Image.fromarray(GREY > 30)), (GREY > 30).astype(np.uint8) * 255),
}  # fmt: skip


@pytest.mark.parametrize("kind", GOOD)
def test_other_kinds_of_pictures_are_read(kind: str, nih: Path):
    content, expected = GOOD[kind]
    (nih / "9.png").write_bytes(content)
    pixels = read_image(nih / "9.png", 8)
    assert pixels.shape == (1, 8, 8)
    if expected is not None:
        np.testing.assert_array_equal(pixels[0], expected)


@pytest.mark.parametrize(("made", "words"), [(os.mkfifo, "a named pipe"), (Path.touch, "an empty file")])
def test_a_dicom_file_that_is_no_file_is_refused(made, words: str, nih: Path):
    made(nih / "9.dcm")
    with refusals.refused(DataError, words):
        read_image(nih / "9.dcm", 8)
