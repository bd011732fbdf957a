"""Decoding: images that are kept if it stops, damage that is refused or dropped, a sample first, and processes."""

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import refusals
from own_tables import opened, people, picture, write_pictures, write_table
from PIL import Image
from runs import execute

from fedlit.core.errors import ConfigError, DataError
from fedlit.data import ImageTable, Organisations
from fedlit.data.pictures import decoding, pixels
from fedlit.data.pictures.decoding import decode_images
from fedlit.data.pictures.hashes import perceptual_hashes
from fedlit.data.pictures.store import StoreView


def pixels_of(n: int) -> np.ndarray:
    return np.asarray(picture(n, 16))


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:90])


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Names of the files that were read."""
    real, names = pixels.read_image, []

    def counted(file, *rest):
        names.append(Path(file).name)
        return real(file, *rest)

    monkeypatch.setattr(pixels, "read_image", counted)
    return names


def check(store, rows) -> None:
    for position, n in enumerate(rows):
        np.testing.assert_array_equal(store[position].numpy()[0], pixels_of(n))


# What stays


def test_the_decoded_stay_where_damage_is_refused(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    damage(files[3]), damage(files[7])
    with refusals.refused(DataError, "2 of 12", files[3], files[7]):
        decode_images(files, 16, cache_dir=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").glob("[!.]*")] == [".partial"]
    read.clear()
    with refusals.refused(DataError, "2 of 12"):
        decode_images(files, 16, cache_dir=tmp_path / "cache")
    assert read == ["003.png", "007.png"]
    for n in (3, 7):
        picture(n, 16).save(files[n])
    read.clear()
    store = decode_images(files, 16, cache_dir=tmp_path / "cache")  # other times, another store: the ten are copied
    assert read == ["003.png", "007.png"]
    check(store, range(12))
    assert [path.suffix for path in (tmp_path / "cache").glob("[!.]*")] == [""]


def test_the_same_files_and_options_are_decoded_once(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    store = decode_images(files[::-1], 16, cache_dir=tmp_path / "cache")
    check(store, range(11, -1, -1))
    np.testing.assert_array_equal(store.hashes(), perceptual_hashes(store[list(range(12))]))
    read.clear()
    assert decode_images(files[::-1], 16, cache_dir=tmp_path / "cache").path == store.path
    assert read == []
    decode_images(files, 16, cache_dir=tmp_path / "cache")
    decode_images(files, 8, cache_dir=tmp_path / "cache")
    decode_images(files, 16, channels=3, cache_dir=tmp_path / "cache")
    decode_images(files, 16, cache_dir=tmp_path / "cache", depth=12)
    decode_images(files, 16, cache_dir=tmp_path / "cache", resize="pad")
    assert len(read) == 60  # another order, size, depth and resizing, and other channels, are other images


def test_a_file_that_changed_is_decoded_again(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    before = decode_images(files, 16, cache_dir=tmp_path / "cache")
    picture(40, 16).save(files[3])
    os.utime(files[3], (0, 1))
    after = decode_images(files, 16, cache_dir=tmp_path / "cache")
    assert after.path != before.path
    check(before, range(12)), check(after, [0, 1, 2, 40, *range(4, 12)])


def test_damaged_images_of_a_store_are_decoded_again_without_the_others(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    damage(files[5])
    store = decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")
    damaged = store.damaged
    content, hashes = bytearray((store.path / "array.npy").read_bytes()), store.hashes()
    content[128 + 7 * 256 + 3] ^= 1
    content[128 + 2 * 256] ^= 1
    (store.path / "array.npy").write_bytes(content)
    read.clear()
    with pytest.warns(UserWarning, match=r"this cache entry is damaged \(its checksum does not match\)"):
        again = decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")
    assert sorted(read) == ["002.png", "005.png", "007.png"]
    assert again.damaged == damaged
    kept = [n for n in range(12) if n != 5]
    check(StoreView([again], kept), kept)
    np.testing.assert_array_equal(again.hashes(), hashes)


KILLED = """
import os, sys
from pathlib import Path
from fedlit.data.pictures import pixels
os.environ["FEDLIT_CORES"] = "1"
from fedlit.data.pictures.decoding import decode_images

real, seen = pixels.read_image, []

def slow(file, *rest):
    seen.append(file)
    if len(seen) == 10:
        os.kill(os.getpid(), 9)
    return real(file, *rest)

pixels.read_image = slow
decode_images(sorted(Path(sys.argv[1]).iterdir()), 16, cache_dir=sys.argv[2])
"""


@pytest.mark.slow
def test_a_kill_loses_only_the_image_that_was_being_decoded(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    assert execute(KILLED, tmp_path, tmp_path / "png", tmp_path / "cache").wait() == -signal.SIGKILL
    store = decode_images(files, 16, cache_dir=tmp_path / "cache")
    assert len(read) == 3  # one thread had decoded nine
    check(store, range(12))


def test_of_an_unfinished_store_that_is_damaged_the_whole_images_are_kept(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    damage(files[3])
    with refusals.refused(DataError, "1 of 12"):
        decode_images(files, 16, cache_dir=tmp_path / "cache")
    (partial,) = (tmp_path / "cache").glob("*.partial")
    os.truncate(partial / "array.npy", 700)
    read.clear()
    store = decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")
    kept = [n for n in range(12) if n != 3]
    check(StoreView([store], kept), kept)
    assert len(read) == 10  # two images lie before the cut
    partial.mkdir()
    (partial / "array.npy").write_bytes(b"half")
    os.utime(files[0], (0, 1))
    assert len(decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")) == 12


# Damage that is dropped


def test_dropped_damage_has_its_reason_and_the_rest_is_there(tmp_path, read):
    files = write_pictures(tmp_path / "png")
    damage(files[3]), files[7].write_text("<html>404</html>")
    for _ in range(2):
        store = decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")
        assert sorted(store.damaged) == [3, 7]
        assert store.damaged[7] == "not an image, or its header is damaged"
        kept = [n for n in range(12) if n not in (3, 7)]
        check(StoreView([store], kept), kept)
    assert len(read) == 12
    with refusals.refused(DataError, "2 of 12"):
        decode_images(files, 16, cache_dir=tmp_path / "cache")
    assert len(read) == 12


def table(root: Path, **options) -> ImageTable:
    files = write_pictures(root / "png", 24)
    lines = [f"{file.name},{n // 2},{n % 2}" for n, file in enumerate(files)]
    (root / "t.csv").write_text("\n".join(["file,patient,a", *lines]) + "\n")
    damage(files[5]), files[6].unlink()
    given = {"image": "file", "patient": "patient", "labels": ["a"], "image_size": 16, "cache_dir": str(root / "cache")}
    return ImageTable(root / "t.csv", root / "png", **given | options)


def test_what_was_dropped_is_counted_listed_and_left_out(tmp_path):
    data = table(tmp_path, missing="drop", damaged="drop")
    with pytest.warns(UserWarning, match="left out") as warned:
        data.setup()
    assert "the first are '005.png'" in str(warned[-1].message)
    assert data.notes[1:] == [
        "1 of 24 images of t are missing and left out",
        "1 of 23 images of t are damaged and left out",
    ]
    assert sorted(data.assignment["image"]) == [f"{n:03d}.png" for n in range(24) if n not in (5, 6)]
    for client in data.clients.values():
        images, labels = client.train.take(range(len(client.train)))
        for name, image, label in zip(client.train.names, images, labels, strict=True):
            n = int(name[:3])
            np.testing.assert_array_equal(image[0].numpy(), pixels_of(n))
            assert label[0] == n % 2
    assert data.save_left_out(tmp_path / "left_out.csv")
    listed = pd.read_csv(tmp_path / "left_out.csv")
    assert listed[["image", "reason"]].values.tolist()[0] == ["006.png", "missing"]
    assert listed["image"].tolist() == ["006.png", "005.png"]
    assert listed["file"][1] == str(tmp_path / "png" / "005.png")
    sources = {"Ours": table(tmp_path, missing="drop", damaged="drop")}
    both = Organisations(sources, image_size=16, cache_dir=str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="left out"):
        both.setup()
    assert [each.image for each in both.left_out] == ["Ours/006.png", "Ours/005.png"]


# The first look


@pytest.fixture
def small_look(monkeypatch):
    monkeypatch.setattr(decoding, "SAMPLE", 4)


def test_a_first_look_stops_before_the_others_are_decoded(tmp_path, read, small_look):
    files = write_pictures(tmp_path / "png", 40)
    damage(files[13])
    with pytest.raises(ValueError) as refused:
        decode_images(files, 16, cache_dir=tmp_path / "cache")
    assert "1 of 4 image files of a sample (of 40) cannot be decoded" in str(refused.value)
    assert "The other 36 were not read; `fedlit data check FOLDER --decode` lists all" in str(refused.value)
    assert sorted(read) == ["000.png", "013.png", "026.png", "039.png"]
    damaged = decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop").damaged
    assert list(damaged) == [13]
    for file in files[10:]:
        damage(file)
    with refusals.refused(DataError, "3 of 4"):  # damage everywhere is none
        decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")


def test_a_missing_package_is_no_damage(tmp_path, monkeypatch):
    files = write_pictures(tmp_path / "png")

    def lacking(file, *rest):
        raise ConfigError("pip install it")

    with monkeypatch.context() as patch:
        patch.setattr(pixels, "read_image", lacking)
        with refusals.refused(ConfigError, "pip install it"):
            decode_images(files, 16, cache_dir=tmp_path / "cache", damaged="drop")
    assert decode_images(files, 16, cache_dir=tmp_path / "cache").damaged == {}


def test_pictures_that_show_nothing_are_noted(tmp_path):
    black = {n: Image.fromarray(np.full((32, 32), 90 * (n % 2), np.uint8)) for n in (4, 5, 9)}
    data = opened(write_table(tmp_path, people(), black))
    data.setup()
    assert "3 of 40 images of ours show nothing, the first are '4.png', '5.png', '9.png'" in data.notes


def test_dark_pictures_are_warned_of(tmp_path):
    (tmp_path / "png").mkdir()
    for n in range(6):
        Image.fromarray(pixels_of(n).astype(np.uint16) * 16).save(tmp_path / "png" / f"{n}.png")
    (tmp_path / "t.csv").write_text("file,a\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(6)))
    given = {"image": "file", "labels": ["a"], "image_size": 16, "cache_dir": str(tmp_path / "cache")}
    with pytest.warns(UserWarning, match="is 16 of 255: if only 12 of their 16 bits are used, set data.depth to 12"):
        ImageTable(tmp_path / "t.csv", tmp_path / "png", **given).records()
    store = ImageTable(tmp_path / "t.csv", tmp_path / "png", depth=12, **given).records().store
    np.testing.assert_allclose(store[0].numpy()[0], pixels_of(0), atol=1)


@pytest.mark.slow
@pytest.mark.parametrize("copied", [True, False])
def test_processes_decode_what_threads_do(tmp_path, small_look, monkeypatch, copied):
    files = write_pictures(tmp_path / "png", 60)
    damage(files[30])
    in_one = decode_images(files, 16, cache_dir=tmp_path / "one", damaged="drop")
    started, real = [], decoding.context
    monkeypatch.setattr(decoding, "MANY", 5)
    monkeypatch.setattr(decoding, "is_dicom", lambda file: True)
    monkeypatch.setattr(decoding, "cores", lambda: 2)
    monkeypatch.setattr(decoding, "context", lambda alike: started.append(alike) or real(alike and copied))
    store = decode_images(files, 16, cache_dir=tmp_path / "two", damaged="drop")
    assert started == [True]
    assert store.damaged == in_one.damaged
    rows = list(range(60))
    np.testing.assert_array_equal(store[rows].numpy(), in_one[rows].numpy())
    np.testing.assert_array_equal(store.hashes(), in_one.hashes())
