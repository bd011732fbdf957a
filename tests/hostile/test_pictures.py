"""Files that are not images, or cannot be decoded, and their tables: training, prediction and checks refuse them."""

import io
import os
import signal
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import refusals
from PIL import Image
from support.hostile import check_printed

from fedlit.core.errors import DataError, FedlitError
from fedlit.data import NIHChestXray14
from fedlit.data.pictures.images import decode_images, read_image
from fedlit.predictions.scoring import score_files

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position\n"
TABLE = HEADER + "".join(f"{n}.png,{'Mass' if n % 2 else 'No Finding'},0,{n},50,M,PA\n" for n in range(10))
FILE = "Data_Entry_2017_v2020.csv"
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


PNG = saved(Image.fromarray(NOISE))


def content(of: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(of)


BAD = {
    "a named pipe": (os.mkfifo, "a named pipe"),
    "a folder": (Path.mkdir, "a folder"),
    "a device that never ends": (lambda p: p.symlink_to("/dev/zero"), "a device"),
    "a link to itself": (lambda p: p.symlink_to(p.name),
        "a name that leads nowhere (Too many levels of symbolic links)"),
    "an empty file": (content(b""), "an empty file"),
    "a text": (content(b"hello"), NO_IMAGE),
    "a program that draws": (content(POSTSCRIPT), NO_IMAGE),
    "a PNG cut off": (content(PNG[:1500]), "truncated"),
    "a JPEG cut off": (content(saved(Image.fromarray(NOISE), "JPEG")[:1500]), "Premature end"),
    "flipped pixels": (content(PNG[:200] + b"\xff" * 64 + PNG[264:]), ""),
    "a bomb": (content(header_of(60_000, 60_000)), "exceeds limit"),
    "one pixel": (content(saved(Image.fromarray(GREY[:1, :1]))), "1 x 1 pixels"),
    "floating point": (content(saved(Image.fromarray(GREY.astype(np.float32)), "TIFF")), "floating point"),
}  # fmt: skip
"""Files that are not images, and parts of the reason."""


@pytest.fixture
def nih(folder: Path) -> Path:
    """A copy of NIH with ten images, the last of which is still missing."""
    (folder / "images").mkdir()
    (folder / FILE).write_text(TABLE)
    for n in range(9):
        (folder / f"images/{n}.png").write_bytes(saved(Image.fromarray(np.roll(GREY, n))))
    signal.alarm(10)  # a pipe would be waited for until the end of days
    yield folder / "images"
    signal.alarm(0)


@pytest.mark.parametrize("what", BAD)
def test_training_refuses_what_is_no_image_and_prediction_leaves_its_row_empty(what: str, nih: Path):
    make, words = BAD[what]
    make(nih / "9.png")
    files = [nih / f"{n}.png" for n in range(10)]
    with refusals.refused(FedlitError, "1 of 10 image files ", nih / "9.png", words):
        decode_images(files, 8, cache_dir=nih / "cache")
    assert not [path for path in (nih / "cache").glob("images-*") if path.suffix != ".partial"]
    scores, unreadable = score_files(Mean(), files, lambda done: None)
    assert list(unreadable) == [files[9]]
    assert words in unreadable[files[9]]
    assert np.isnan(scores[:, 0]).tolist() == [False] * 9 + [True]


@pytest.mark.parametrize("what", ["a named pipe", "a PNG cut off", "a bomb"])
def test_the_check_of_a_folder_names_it(what: str, nih: Path, fedlit_cli):
    make, words = BAD[what]
    make(nih / "9.png")
    check_printed(
        fedlit_cli("data check . --decode"),
        ("1 of 10 images cannot be used", "9.png (Data_Entry_2017_v2020.csv, line 11): ", words),
        1,
    )


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


@refusals.table([
    ("a web page", lambda: "<html><body>Sign in</body></html>", DataError, "a web page"),
    ("a column twice", lambda: TABLE.replace("Follow-up #", "Finding Labels"), DataError, "'Finding Labels'"),
    ("the header twice", lambda: TABLE + HEADER, DataError, "line 12", "'Finding Labels'"),
    ("an image above the folder", lambda: TABLE.replace("3.png", "../../3.png"), DataError, "'../../3.png'"),
    ("an image by its whole path", lambda: TABLE.replace("3.png", "/etc/hostname"), DataError, "/etc/hostname"),
])  # fmt: skip
def test_a_table_that_is_none_or_leads_elsewhere_is_refused(provoke, kind, names, nih: Path):
    (nih.parent / FILE).write_text(provoke())
    with refusals.refused(kind, FILE, *names):
        NIHChestXray14(".", image_size=8, cache_dir=str(nih / "cache")).records()
