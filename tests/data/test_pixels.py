"""Pixels that a library drops, inverts or makes up: read right, or refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data.pictures.images import read_image

SMOOTH = np.add.outer(np.arange(64), 2 * np.arange(64)).astype(np.uint8)


def write_png(path, pixels, colour: int) -> None:
    """Write a PNG of 16 bits, which Pillow cannot write in colour."""
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    packed = (struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def write_tiff(path, pixels, photometric: int, bits: int = 16, samples: int = 1) -> None:
    """Write an uncompressed TIFF of more than 8 bits."""
    content = pixels.astype("<u2").tobytes()
    height, width = pixels.shape[:2]
    tags = {256: width, 257: height, 259: 1, 262: photometric, 273: 8, 277: samples, 278: height, 279: len(content)}
    if samples == 1:
        tags[258] = bits
    else:
        tags[258] = 8 + len(content)  # three numbers do not fit into the entry
        content += struct.pack("<3H", *[bits] * 3)
    entries = b"".join(
        struct.pack("<HHII", tag, 3 if tag == 258 else 4, samples if tag == 258 else 1, value)
        for tag, value in sorted(tags.items())
    )
    end = struct.pack("<H", len(tags)) + entries + bytes(4)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(content)) + content + end)


@pytest.mark.parametrize("depth", [16, 12, 10])
def test_white_as_zero_is_inverted_at_any_depth(tmp_path, depth):
    top = 2**depth - 1
    stored = np.round(SMOOTH / 255.0 * top).astype(int)
    write_tiff(tmp_path / "zero.tif", top - stored, photometric=0)
    write_tiff(tmp_path / "one.tif", stored, photometric=1)
    zero, one = (read_image(tmp_path / f"{name}.tif", 64, depth=depth)[0] for name in ("zero", "one"))
    np.testing.assert_array_equal(zero, one)
    np.testing.assert_array_equal(one, SMOOTH)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rgb.png", lambda path, grey: write_png(path, np.dstack([grey] * 3), 2)),
        ("rgba.png", lambda path, grey: write_png(path, np.dstack([grey] * 3 + [grey * 0 + 65535]), 6)),
        ("rgb.tif", lambda path, grey: write_tiff(path, np.dstack([grey] * 3), 2, samples=3)),
    ],
)
def test_colours_of_more_than_8_bits_are_read_at_their_full_depth_alone(tmp_path, name, write, channels):
    write(tmp_path / name, SMOOTH.astype(np.uint16) * 257)
    np.testing.assert_array_equal(read_image(tmp_path / name, 64, channels)[0], SMOOTH)
    with refused(DataError, "16 bits", "depth is 12"):
        read_image(tmp_path / name, 64, channels, depth=12)


def jpeg(size: int = 256, **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size // 4, size // 4, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR).save(content, "JPEG", **options)
    return content.getvalue()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 95}])
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file[: len(file) * 2 // 5] + b"\xff\xd9",
        lambda file: file[: len(file) * 9 // 10] + b"\xff\xd9",
        lambda file: file[: len(file) // 2] + bytes(300) + file[len(file) // 2 + 300 :],
        lambda file: file[: len(file) // 2] + file[len(file) // 2 + 300 :],
        lambda file: file[:-200],
    ],
)
def test_damage_that_libjpeg_passes_over_is_refused(tmp_path, options, damage):
    (tmp_path / "x.jpg").write_bytes(damage(jpeg(**options)))
    with refused(DataError, "damaged"):
        read_image(tmp_path / "x.jpg", 64)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
@pytest.mark.parametrize("image_size", [16, 100, 256])
def test_whole_jpegs_have_the_pixels_that_pillow_decodes(tmp_path, options, channels, mode, image_size):
    (tmp_path / "x.jpg").write_bytes(jpeg(**options))
    with Image.open(tmp_path / "x.jpg") as image:
        image.draft(mode, (2 * image_size, 2 * image_size))
        expected = image.convert(mode)
        if expected.size != (image_size, image_size):
            expected = expected.resize((image_size, image_size), Image.Resampling.BILINEAR)
    found = read_image(tmp_path / "x.jpg", image_size, channels)
    np.testing.assert_array_equal(found, np.asarray(expected).reshape(image_size, image_size, -1).transpose(2, 0, 1))
