"""The image store, pixels as they are decoded, and batches with their augmentation."""

import io
import pickle
import struct
import zlib

import numpy as np
import pytest
import torch
from own_tables import picture, write_pictures
from PIL import Image
from refusals import refused
from runs import execute
from torchvision.transforms import v2

from fedlit.core.errors import DataError
from fedlit.data.pictures.augmentation import FlipCropAugmentation, PerImage, XrayAugmentation
from fedlit.data.pictures.images import ImageStore, LabelledImages, cache_folder, decode_images, read_image
from fedlit.data.xrays.checked import inspect_image


def pictures(count: int = 6, size: int = 16, channels: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def data_set(tmp_path, array: np.ndarray, **kwargs) -> LabelledImages:
    count = len(array)
    labels = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    names = np.array([f"{index}.png" for index in range(count)])
    return LabelledImages(ImageStore.from_array(array, tmp_path), np.arange(count), labels, names, **kwargs)


# The store


def test_the_store_returns_copies_of_the_pixels_and_pickles_as_its_path(tmp_path):
    array = pictures(count=200)
    store = ImageStore.from_array(array, tmp_path)
    pickled = pickle.dumps(store)
    assert len(pickled) < 1000
    for one in (store, pickle.loads(pickled)):
        assert (len(one), one.shape, one.path) == (200, (200, 1, 16, 16), store.path)
        for indices in ([4, 0, 4], np.array([1]), torch.tensor([5, 2])):
            found = one[indices]
            assert found.dtype == torch.uint8
            np.testing.assert_array_equal(found.numpy(), array[np.asarray(indices)])
            found.zero_()
            np.testing.assert_array_equal(one[indices].numpy(), array[np.asarray(indices)])
        assert one[3].shape == (1, 16, 16)
        one[3].zero_()
        np.testing.assert_array_equal(one[3].numpy(), array[3])


def test_the_store_is_made_once(tmp_path):
    calls = []

    def write(out):
        calls.append(out.shape)
        out[:] = 7

    for _ in range(2):
        store = ImageStore.cached("sevens", (3, 1, 4, 4), write, tmp_path)
        assert (store[[0, 1, 2]] == 7).all()
    assert calls == [(3, 1, 4, 4)]
    ImageStore.cached("sevens", (2, 1, 4, 4), write, tmp_path)
    assert len(calls) == 2, "a store of another shape is made anew"


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    def write(out):
        out[:] = 7
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        ImageStore.cached("half", (3, 1, 4, 4), write, tmp_path)
    with pytest.raises(OSError, match=r"need \d+\.\d GiB, found .* another cache_dir or a smaller image_size"):
        ImageStore.cached("vast", (10**12, 1, 1024, 1024), lambda out: None, tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".lock"] == []


@pytest.mark.slow
def test_a_killed_write_is_started_again(tmp_path):
    code = (
        "import os, sys; from fedlit.data.pictures.images import ImageStore\n"
        "ImageStore.cached('k', (3, 1, 4, 4), lambda out: os.kill(os.getpid(), 9), sys.argv[1])"
    )
    assert execute(code, tmp_path, tmp_path).wait() == -9
    assert not (tmp_path / "k").exists()
    store = ImageStore.cached("k", (3, 1, 4, 4), lambda out: out.fill(9), tmp_path)
    assert (store[[0, 1, 2]] == 9).all()
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == ["k"]


def test_the_cache_folder_follows_argument_then_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "fedlit"
    assert cache_folder(tmp_path / "own") == tmp_path / "own"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "fedlit"


# Decoding


def test_resizing_is_antialiased(tmp_path):
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    small = read_image(tmp_path / "stripes.png", 16)
    assert small.shape == (1, 16, 16)
    # Picking every fourth pixel would give all black; smoothing gives grey.
    assert np.abs(small[0, :, 1:-1].astype(int) - 127).max() <= 2


GREY = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P"])
def test_colour_and_transparency_become_grey(tmp_path, mode):
    image = Image.fromarray(GREY).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(128)
    image.save(tmp_path / "x.png")
    assert Image.open(tmp_path / "x.png").mode == mode
    assert np.abs(read_image(tmp_path / "x.png", 32)[0].astype(int) - GREY).max() <= 1
    colour = read_image(tmp_path / "x.png", 32, channels=3)
    assert colour.shape == (3, 32, 32)
    assert np.abs(colour.astype(int) - GREY).max() <= 1


@pytest.mark.parametrize("brightest", [65535, 4095, 2000])
def test_deep_pictures_are_scaled_by_the_depth_of_the_data_set_not_by_their_brightest_pixel(tmp_path, brightest):
    deep = np.round(GREY / GREY.max() * brightest).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert Image.open(tmp_path / "deep.png").mode.startswith("I")
    for depth in (16, 12):
        if brightest < 2**depth:
            found = read_image(tmp_path / "deep.png", 32, depth=depth)[0]
            np.testing.assert_allclose(found, deep.astype(float) * 255 / (2**depth - 1), atol=0.51)
        else:
            with refused(DataError, "of 12", "below 4,096", "65,535"):
                read_image(tmp_path / "deep.png", 32, depth=depth)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_exif_is_applied(tmp_path, orientation):
    upright = Image.fromarray(np.outer(np.arange(0, 256, 4), np.linspace(0, 1, 64)).astype(np.uint8))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what brings each orientation about, as Pillow counts
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name, options in (("x.jpg", {"quality": 100}), ("x.png", {})):
        stored.save(tmp_path / name, exif=exif, **options)
        assert np.abs(read_image(tmp_path / name, 64)[0].astype(int) - np.asarray(upright)).max() <= 3


@pytest.mark.parametrize("suffix", ["tif", "gif", "png"])
def test_more_than_one_page_or_frame_is_refused(tmp_path, suffix):
    file = tmp_path / f"x.{suffix}"
    picture(0).save(file, save_all=True, append_images=[picture(1), picture(2)])
    with refused(DataError, "found 3"):
        read_image(file, 16)
    assert "3 pages or frames" in inspect_image(str(file)).problem
    picture(0).save(file)
    assert read_image(file, 32).shape == (1, 32, 32)


def test_missing_files_are_named_with_their_count(tmp_path):
    files = write_pictures(tmp_path / "png", 5)
    files[1:1] = [tmp_path / f"gone-{index}.png" for index in range(7)]
    with pytest.raises(FileNotFoundError) as caught:
        decode_images(files, 32, cache_dir=tmp_path / "cache")
    assert "7 of 12 image files are missing" in str(caught.value)
    assert "gone-0.png" in str(caught.value)
    assert "gone-6.png" not in str(caught.value)


# Pixels that a library drops, inverts or makes up

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


@pytest.mark.parametrize("depth", [16, 12])
def test_white_as_zero_is_inverted_at_any_depth(tmp_path, depth):
    top = 2**depth - 1
    stored = np.round(SMOOTH / 255.0 * top).astype(int)
    write_tiff(tmp_path / "zero.tif", top - stored, photometric=0)
    write_tiff(tmp_path / "one.tif", stored, photometric=1)
    for name in ("zero", "one"):
        np.testing.assert_array_equal(read_image(tmp_path / f"{name}.tif", 64, depth=depth)[0], SMOOTH)


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


def jpeg(**options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).resize((128, 128), Image.Resampling.BILINEAR).save(content, "JPEG", **options)
    return content.getvalue()


DAMAGE = {
    "cut early": lambda file: file[: len(file) * 2 // 5] + b"\xff\xd9",
    "cut late": lambda file: file[: len(file) * 9 // 10] + b"\xff\xd9",
    "zeros": lambda file: file[: len(file) // 2] + bytes(300) + file[len(file) // 2 + 300 :],
    "a gap": lambda file: file[: len(file) // 2] + file[len(file) // 2 + 300 :],
    "no end": lambda file: file[:-200],
}


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 95}])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_that_libjpeg_passes_over_is_refused(tmp_path, options, damage):
    (tmp_path / "x.jpg").write_bytes(DAMAGE[damage](jpeg(**options)))
    with refused(DataError, "damaged"):
        read_image(tmp_path / "x.jpg", 64)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_whole_jpegs_have_the_pixels_that_pillow_decodes_at_a_part_of_their_size(tmp_path, options):
    (tmp_path / "x.jpg").write_bytes(jpeg(**options))
    for image_size in (8, 50, 128):
        for channels, mode in ((1, "L"), (3, "RGB")):
            with Image.open(tmp_path / "x.jpg") as image:
                image.draft(mode, (2 * image_size, 2 * image_size))
                expected = image.convert(mode)
                if expected.size != (image_size, image_size):
                    expected = expected.resize((image_size, image_size), Image.Resampling.BILINEAR)
            planes = np.asarray(expected).reshape(image_size, image_size, -1).transpose(2, 0, 1)
            np.testing.assert_array_equal(read_image(tmp_path / "x.jpg", image_size, channels), planes)


# Batches


def test_a_batch_has_its_rows_of_the_store_normalised_and_labelled(tmp_path):
    array = pictures()
    data = data_set(tmp_path, array, mean=0.5, std=0.25)
    images, labels = data.batch([3, 1])
    assert (images.dtype, labels.dtype) == (torch.float32, torch.float32)
    np.testing.assert_allclose(images.numpy(), (array[[3, 1]] / 255 - 0.5) / 0.25, atol=1e-5)
    assert labels.tolist() == [[6, 7], [2, 3]]
    image, label = data[3]
    torch.testing.assert_close(image, images[0])
    torch.testing.assert_close(label, labels[0])
    torch.testing.assert_close(data.batch(torch.tensor([3, 1]))[0], images)
    store = ImageStore.from_array(array, tmp_path)
    some = LabelledImages(store, np.array([4, 2]), np.zeros((2, 1)), np.array(["e", "c"]), mean=0.0, std=1.0)
    assert len(some) == 2
    np.testing.assert_allclose(some.batch([1])[0].numpy(), array[[2]] / 255, atol=1e-6)


def test_grey_is_repeated_and_colour_becomes_grey(tmp_path):
    images, _ = data_set(tmp_path, pictures(), in_chans=3, mean=[0.1, 0.2, 0.3], std=[1, 1, 2]).batch([0])
    grey = torch.from_numpy(pictures()[:1] / 255).float()
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([1, 1, 2]).view(3, 1, 1)
    torch.testing.assert_close(images, (grey.expand(1, 3, 16, 16) - mean) / std)
    colour = np.repeat(pictures(), 3, axis=1)
    torch.testing.assert_close(data_set(tmp_path, colour, mean=0.0, std=1.0).batch([0])[0], grey, atol=1e-3, rtol=0)


AUGMENTATIONS = {
    "default": XrayAugmentation(),
    "torchvision": PerImage(v2.Compose([v2.RandomRotation(10), v2.ColorJitter(brightness=0.2)])),
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_is_drawn_for_each_image(tmp_path, name):
    data = data_set(tmp_path, pictures(), augment=AUGMENTATIONS[name])
    torch.manual_seed(0)
    images, _ = data.batch([2, 2, 2])
    assert not torch.equal(images[0], images[1])
    assert not torch.equal(images[1], images[2])
    torch.manual_seed(0)
    torch.testing.assert_close(data.batch([2, 2, 2])[0], images, atol=0, rtol=0)
    assert not torch.equal(data.batch([2, 2, 2])[0], images)


def test_without_augmentation_nothing_is_drawn(tmp_path):
    data = data_set(tmp_path, pictures())
    before = torch.get_rng_state()
    torch.testing.assert_close(data.batch([2, 2])[0], data.batch([2, 2])[0], atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(3, 1, 24, 24), (2, 3, 16, 40)])
def test_the_default_augmentation_with_no_limits_is_the_identity(shape):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(XrayAugmentation(0, 0, 0, 0, 0)(images), images, atol=1e-5, rtol=0)


def bright_spot(images: torch.Tensor) -> torch.Tensor:
    """Centre of mass as (y, x) in pixels from the middle, [B, 2]."""
    height, width = images.shape[-2:]
    y = torch.arange(height).view(-1, 1) - (height - 1) / 2
    x = torch.arange(width).view(1, -1) - (width - 1) / 2
    mass = images[:, 0]
    return torch.stack([(mass * y).sum((1, 2)), (mass * x).sum((1, 2))], 1) / mass.sum((1, 2)).view(-1, 1)


def test_each_limit_of_the_default_augmentation_is_kept_and_reached():
    torch.manual_seed(0)
    still = dict.fromkeys(("degrees", "shift", "scale", "brightness", "contrast"), 0)
    spot = torch.zeros(400, 1, 64, 96)
    spot[:, :, 30:34, 76:80] = 1.0  # 30 pixels right of the middle
    moved = bright_spot(XrayAugmentation(**still | {"degrees": 10})(spot))
    torch.testing.assert_close(moved.norm(dim=1), torch.full((400,), 30.0), atol=0.3, rtol=0)
    angles = torch.rad2deg(torch.atan2(moved[:, 0], moved[:, 1])).abs()
    assert 9 < angles.max() < 10.5
    middle = torch.zeros(400, 1, 64, 96)
    middle[:, :, 30:34, 46:50] = 1.0
    moved = bright_spot(XrayAugmentation(**still | {"shift": 0.1})(middle)).abs()
    assert 6 < moved[:, 0].max() < 6.6
    assert 9 < moved[:, 1].max() < 9.8
    moved = bright_spot(XrayAugmentation(**still | {"scale": 0.1})(spot))
    assert moved[:, 1].min() < 27.5 < 32.5 < moved[:, 1].max()
    assert moved[:, 0].abs().max() < 0.1
    flat = torch.full((400, 1, 8, 8), 0.5)
    values = XrayAugmentation(**still | {"brightness": 0.2, "contrast": 0.5})(flat)[:, 0, 4, 4]
    assert 0.4 <= values.min() < 0.41 < 0.59 < values.max() <= 0.6
    halves = torch.cat([torch.full((400, 1, 8, 4), 0.4), torch.full((400, 1, 8, 4), 0.6)], dim=3)
    values = XrayAugmentation(**still | {"contrast": 0.5})(halves)
    gaps = values[:, 0, 4, 7] - values[:, 0, 4, 0]
    assert 0.1 <= gaps.min() < 0.11 < 0.29 < gaps.max() <= 0.301
    images = XrayAugmentation(brightness=0.9, contrast=0.9)(torch.rand(50, 1, 16, 16))
    assert 0 <= images.min() <= images.max() <= 1


def test_photographs_are_flipped_or_not_and_cut_out_of_their_padded_selves():
    torch.manual_seed(0)
    images = torch.rand(300, 2, 16, 8) + 0.01
    augmented = FlipCropAugmentation()(images)
    padded = torch.nn.functional.pad(images, (1, 1, 2, 2))
    windows = {(d, r): padded[:, :, d : d + 16, r : r + 8] for d in range(5) for r in range(3)}
    cuts = {
        (flip, *at): (augmented == (window.flip(-1) if flip else window)).flatten(1).all(1)
        for at, window in windows.items()
        for flip in (False, True)
    }
    assert all(found.any() for found in cuts.values())
    assert (torch.stack([*cuts.values()]).sum(0) == 1).all()
    assert 110 < sum(int(found.sum()) for (flip, *_), found in cuts.items() if flip) < 190
    images = images[:20]
    augmented = FlipCropAugmentation(0)(images)
    same = (augmented == images).flatten(1).all(1)
    assert 0 < same.sum() < 20
    torch.testing.assert_close(augmented[~same], images[~same].flip(-1))
