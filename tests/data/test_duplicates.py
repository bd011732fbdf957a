"""Recompressed, resized and cropped copies are found; different images are not taken for copies."""

import io
from pathlib import Path

import numpy as np
import pytest
import refusals
import torch
from own_tables import opened, people, write_table
from PIL import Image, ImageOps

from fedlit.core.errors import DataError
from fedlit.data import ImageTable, Organisations, PhantomCXR
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.pictures import duplicates
from fedlit.data.pictures.duplicates import cached_pairs, draw_pairs, near_pairs
from fedlit.data.pictures.hashes import perceptual_hashes, turned
from fedlit.data.pictures.pixels import THUMB
from fedlit.data.pictures.store import ImageStore, StoreView, Thumbs
from fedlit.data.xrays.check import check_folder, compare_folders

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "nih-cxr14-mini" / "images"


def drawn(n: int, size: int = 96) -> Image.Image:
    """A smooth picture with details, as an X-ray has."""
    rng = np.random.default_rng(n)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).resize(
        (size, size), Image.Resampling.BICUBIC
    )
    fine = Image.fromarray(rng.integers(0, 60, (40, 40), dtype=np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    return Image.fromarray(np.clip(np.asarray(coarse, int) * 3 // 4 + np.asarray(fine, int), 0, 255).astype(np.uint8))


def jpeg(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=50)
    return Image.open(file).convert("L")


COPIES = {
    "as it is": lambda image: image,
    "compressed": jpeg,
    "halved": lambda image: image.resize([n // 2 for n in image.size], Image.Resampling.BICUBIC),
    "brighter": lambda image: image.point(lambda value: min(255, int(value * 1.1))),
    "mirrored": ImageOps.mirror,
    "inverted": ImageOps.invert,
    "turned": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "upside down": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "equalised": ImageOps.equalize,
}


def store(folder: Path, images: list[Image.Image], size: int = 96) -> ImageStore:
    return ImageStore.from_array(np.stack([np.asarray(image.resize((size, size)))[None] for image in images]), folder)


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_found_and_nothing_else(tmp_path, how):
    ours = store(tmp_path, [drawn(n) for n in range(40)])
    theirs = store(tmp_path, [COPIES[how](drawn(n)) for n in (7, 99, 3)])
    pairs = near_pairs(ours, theirs)
    assert sorted((pair.one, pair.other, pair.same) for pair in pairs) == [(3, 2, True), (7, 0, True)]
    assert near_pairs(ours, ours) == []


@pytest.mark.slow
def test_real_xrays_and_their_copies(tmp_path):
    files = sorted(REAL.glob("*.png"))[:50]
    if len(files) < 50:
        pytest.skip("needs ../shared/data/nih-cxr14-mini with images/")
    images = [Image.open(file).convert("L") for file in files]
    ours = store(tmp_path, images)
    cut = store(tmp_path, [image.crop((2, 2, image.size[0] - 2, image.size[1] - 2)) for image in images])
    found = {(pair.one, pair.other) for pair in near_pairs(ours, cut)}
    assert sum((n, n) in found for n in range(50)) >= 49
    assert all(pair.same for pair in near_pairs(ours, store(tmp_path, [jpeg(image) for image in images])))
    borders = [ImageOps.expand(image, round(0.03 * image.size[0]), 0) for image in images]
    small = near_pairs(store(tmp_path, images, THUMB), store(tmp_path, borders, THUMB))
    assert sum(pair.one == pair.other for pair in small) >= 49
    patients = np.array([file.name.partition("_")[0] for file in files])
    assert near_pairs(ours, ours, (patients, patients)) == []


def test_a_border_that_resizing_has_mixed_with_the_picture_is_cut_off(tmp_path):
    """A border of 3.8 pixels: the fourth row is black for the most part."""
    images = [drawn(n, 224) for n in range(8)]
    ours = store(tmp_path, images, THUMB)
    pairs = near_pairs(ours, store(tmp_path, [ImageOps.expand(image, 7, 0) for image in images], THUMB))
    assert sorted((pair.one, pair.other, pair.same) for pair in pairs) == [(n, n, True) for n in range(8)]


def test_the_hash_of_a_picture_follows_its_shape_not_its_brightness():
    picture = np.asarray(drawn(1))[None, None]
    (one,) = perceptual_hashes(picture)
    assert max(bits(perceptual_hashes(picture // 2 + 60)[0] ^ one)) <= 4
    assert min(bits(perceptual_hashes(picture[..., ::-1].copy())[0] ^ one)) > 12
    colour = np.repeat(picture, 3, axis=1)
    assert (perceptual_hashes(colour)[0] == one).all()


def bits(hashes: np.ndarray) -> list[int]:
    return [bin(int(each)).count("1") for each in hashes]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("quarters", range(4))
def test_the_hash_of_a_turned_picture_follows_from_that_of_the_picture(quarters, mirrored):
    picture = np.asarray(drawn(1))
    other = np.rot90(picture[:, ::-1] if mirrored else picture, quarters).copy()
    expected = perceptual_hashes(other[None, None])[0]
    assert max(bits(turned(perceptual_hashes(picture[None, None])[0], quarters, mirrored) ^ expected)) <= 1
    inverse = perceptual_hashes(255 - picture[None, None])[0]
    assert max(bits(~inverse ^ perceptual_hashes(picture[None, None])[0])) <= 4


def test_flat_pictures_are_like_nothing(tmp_path):
    flat = ImageStore.from_array(np.full((3, 1, 64, 64), 9, np.uint8), tmp_path)
    assert near_pairs(flat, flat) == []


def test_of_many_candidates_the_nearest_are_looked_at(tmp_path, monkeypatch):
    ours = store(tmp_path, [drawn(n) for n in range(6)] * 4)
    monkeypatch.setattr(duplicates, "CANDIDATES", 40)
    monkeypatch.setattr(duplicates, "COLUMNS", 5)
    hashes = ours.hashes()[:, 0]
    assert len(duplicates._candidates(hashes, hashes, True, None)) <= 40


def test_what_pictures_must_differ_in(tmp_path):
    ours = store(tmp_path, [drawn(n) for n in (0, 1, 0, 1)])
    assert len(near_pairs(ours, ours)) == 2
    names = np.array(["a", "b", "a", "c"])
    assert [(pair.one, pair.other) for pair in near_pairs(ours, ours, (names, names))] == [(1, 3)]


def test_pairs_are_kept_in_the_cache_and_drawn(tmp_path, monkeypatch):
    ours, theirs = store(tmp_path, [drawn(n) for n in range(3)]), store(tmp_path, [jpeg(drawn(1))])
    pairs = cached_pairs(tmp_path, ours, theirs, ("one", "two"))
    file = draw_pairs(tmp_path / "pairs.png", pairs, (ours, theirs), (["a", "bäb", "c"], ["d"]))
    sheet = np.asarray(Image.open(file))
    assert sheet.shape == (duplicates.EDGE + 38, 2 * duplicates.EDGE + 12)
    expected = np.asarray(drawn(1).resize((duplicates.EDGE, duplicates.EDGE)))
    np.testing.assert_array_equal(sheet[4 : 4 + duplicates.EDGE, 4 : 4 + duplicates.EDGE], expected)
    monkeypatch.setattr(duplicates, "near_pairs", None)
    assert cached_pairs(tmp_path, ours, theirs, ("one", "two")) == pairs


def test_small_pictures_in_a_file():
    thumbs = Thumbs(3)
    thumbs.put(1, np.asarray(drawn(4, 128))[None])
    assert torch.equal(thumbs[np.array([1])][0, 0], torch.from_numpy(np.array(drawn(4, 128))))
    assert len(StoreView([thumbs], np.array([1, 1]))) == 2
    assert StoreView([thumbs], np.array([1, 1])).hashes().tolist() == [thumbs.hashes()[1].tolist()] * 2


# What uses it


def table(root: Path, images: dict[str, Image.Image]) -> ImageTable:
    columns = people(len(images), file=list(images), patient=[f"{root.name}-{name}" for name in images])
    file = write_table(root, columns, dict(enumerate(images.values())), name="t.csv")
    return opened(file, image_size=96, cache_dir=str(root.parent / "cache"))


def twenty(start: int, **others: Image.Image) -> dict[str, Image.Image]:
    return {f"{n}.png": drawn(n) for n in range(start, start + 20)} | others


def test_organisations_refuse_a_copy_that_was_compressed_and_resized(tmp_path):
    copy = jpeg(drawn(5)).resize((70, 70))
    sources = {"A": table(tmp_path / "a", twenty(0)), "B": table(tmp_path / "b", twenty(50, **{"copy.png": copy}))}
    data = Organisations(sources, image_size=96, cache_dir=str(tmp_path / "cache"))
    with refusals.refused(DataError, "'A'", "'B'", "'5.png and copy.png'") as refused:
        data.setup()
    (file,) = (tmp_path / "cache").glob("pairs-*.png")
    assert str(file) in str(refused.value)


def test_pictures_that_may_be_one_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "SAME", 1.1)
    sources = {
        "A": table(tmp_path / "a", twenty(0)),
        "B": table(tmp_path / "b", twenty(50, **{"copy.png": jpeg(drawn(5))})),
    }
    data = Organisations(sources, image_size=96, cache_dir=str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="1 images of 'A' and 'B' are near-duplicates, perhaps cropped copies: see"):
        data.setup()


def hospital(**look) -> PhantomCXR:
    return PhantomCXR(hospitals=[Hospital(images=60, **look)])


@pytest.mark.filterwarnings("error::UserWarning")
def test_drawn_pictures_of_two_hospitals_are_never_taken_for_one(tmp_path):
    """Small and blurred synthetic images are similar, but are not compared."""
    sources = {"coast": hospital(name="coast", contrast=0.65), "hills": hospital(name="hills", blur=0.7)}
    data = Organisations(sources, image_size=48, split=(0.6, 0.1, 0.3), cache_dir=str(tmp_path))
    data.setup()
    assert not data.notes
    found = cached_pairs(tmp_path, *(source.records().store for source in data.sources.values()), ("coast", "hills"))
    assert found, "nothing here looks alike"


def test_the_check_of_a_folder_finds_copies_under_two_patients(tmp_path):
    found = check_folder(table(tmp_path / "a", twenty(0, **{"copy.png": jpeg(drawn(5))})), True, tmp_path / "pairs.png")
    (problem,) = found.problems
    assert problem.text.startswith(
        "1 images belong to more than one patient, recompressed, resized or cropped; see "
        f"{tmp_path / 'pairs-t.png'}: a patient in two splits"
    )
    assert problem.places == [f"{tmp_path}/a/5.png is {tmp_path}/a/copy.png"]
    assert (tmp_path / "pairs-t.png").is_file()


def test_the_check_of_two_folders_finds_copies_between_them(tmp_path):
    checks = [
        check_folder(table(tmp_path / "a", twenty(0)), True),
        check_folder(table(tmp_path / "b", twenty(50, **{"x.png": jpeg(drawn(5))})), True),
    ]
    (problem,) = compare_folders(checks, tmp_path / "pairs.png")
    first, other = tmp_path / "a", tmp_path / "b"
    assert f"1 images of {first} are near-duplicates of images of {other}, 1 of them surely copies" in problem.text
    assert compare_folders(checks[:1]) == []
    assert compare_folders([check_folder(table(tmp_path / "c", twenty(0))), checks[1]]) == []
