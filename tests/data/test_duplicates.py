"""Recompressed, resized and cropped copies are found; different images are not taken for copies."""

import io
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import refusals
from own_tables import opened, people, picture, write_table
from PIL import Image, ImageOps

from fedlit.core.errors import DataError
from fedlit.data import ImageTable, Organisations, PhantomCXR
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.pictures import duplicates
from fedlit.data.pictures.duplicates import cached_pairs, draw_pairs, near_pairs
from fedlit.data.pictures.pixels import THUMB
from fedlit.data.pictures.store import ImageStore
from fedlit.data.xrays.check import check_folder, compare_folders

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "nih-cxr14-mini" / "images"


@cache
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


def test_copies_are_found_and_nothing_else(tmp_path):
    ours = store(tmp_path, [drawn(n) for n in range(40)])
    assert near_pairs(ours, ours) == []
    for how, copied in COPIES.items():
        pairs = near_pairs(ours, store(tmp_path, [copied(drawn(n)) for n in (7, 99, 3)]))
        assert sorted((pair.one, pair.other, pair.same) for pair in pairs) == [(3, 2, True), (7, 0, True)], how


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


def test_what_pictures_must_differ_in(tmp_path):
    flat = ImageStore.from_array(np.full((3, 1, 64, 64), 9, np.uint8), tmp_path)
    assert near_pairs(flat, flat) == []
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


# What uses it


def table(root: Path, images: dict[str, Image.Image]) -> ImageTable:
    columns = people(len(images), file=list(images), patient=[f"{root.name}-{name}" for name in images])
    file = write_table(root, columns, dict(enumerate(images.values())), name="t.csv")
    return opened(file, image_size=96, cache_dir=str(root.parent / "cache"))


def several(start: int, **others: Image.Image) -> dict[str, Image.Image]:
    return {f"{n}.png": drawn(n) for n in range(start, start + 10)} | others


def test_organisations_refuse_a_copy_that_was_compressed_and_resized(tmp_path, monkeypatch):
    copy = jpeg(drawn(5)).resize((70, 70))
    sources = {"A": table(tmp_path / "a", several(0)), "B": table(tmp_path / "b", several(50, **{"copy.png": copy}))}
    options = {"image_size": 96, "cache_dir": str(tmp_path / "cache")}
    with refusals.refused(DataError, "'A'", "'B'", "'5.png and copy.png'") as refused:
        Organisations(sources, **options).setup()
    (file,) = (tmp_path / "cache").glob("pairs-*.png")
    assert str(file) in str(refused.value)
    monkeypatch.setattr(duplicates, "SAME", 1.1)
    (tmp_path / "cache").rename(tmp_path / "before")  # it keeps the pairs
    with pytest.warns(UserWarning, match="1 images of 'A' and 'B' are near-duplicates, perhaps cropped copies: see"):
        Organisations(sources, **options).setup()


def hospital(**look) -> PhantomCXR:
    return PhantomCXR(hospitals=[Hospital(images=20, **look)])


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
    data = table(tmp_path / "a", several(0, **{"copy.png": jpeg(drawn(5))}))
    found = check_folder(data, True, tmp_path / "pairs.png")
    (problem,) = found.problems
    assert problem.text.startswith(
        "1 images belong to more than one patient, recompressed, resized or cropped; see "
        f"{tmp_path / 'pairs-t.png'}: a patient in two splits"
    )
    assert problem.places == [f"{tmp_path}/a/5.png is {tmp_path}/a/copy.png"]
    assert (tmp_path / "pairs-t.png").is_file()


def test_the_check_of_two_folders_finds_copies_between_them(tmp_path):
    checks = [
        check_folder(table(tmp_path / "a", several(0)), True),
        check_folder(table(tmp_path / "b", several(50, **{"x.png": jpeg(drawn(5))})), True),
    ]
    (problem,) = compare_folders(checks, tmp_path / "pairs.png")
    first, other = tmp_path / "a", tmp_path / "b"
    assert f"1 images of {first} are near-duplicates of images of {other}, 1 of them surely copies" in problem.text
    assert compare_folders(checks[:1]) == []
    assert compare_folders([check_folder(table(tmp_path / "c", several(0))), checks[1]]) == []


# Copies within a table

SITES = ["north"] * 10 + ["south"] * 10


def of_sites(root: Path, copies: dict[int, Image.Image], **options) -> ImageTable:
    file = write_table(root, people(20, site=SITES), copies)
    return opened(file, site="site", image_size=32, cache_dir=str(root.parent / "cache"), **options)


def test_copies_at_two_sites_of_one_table_are_refused_unless_they_are_allowed(tmp_path):
    copies = {10 + n: picture(n) for n in range(4)}
    data = of_sites(tmp_path / "ours", copies)
    with refusals.refused(DataError, "'ours'", "png and") as refused:
        data.setup()
    (file,) = (tmp_path / "cache").glob("pairs-*.png")
    assert str(file) in str(refused.value)
    with refusals.refused(DataError, "4 images of 'ours'"):
        Organisations({"ours": of_sites(tmp_path / "ours", copies)}, image_size=32, cache_dir=str(tmp_path)).setup()
    allowed = of_sites(tmp_path / "ours", copies, duplicates="allow")
    with pytest.warns(UserWarning, match="4 images of 'ours' belong to more than one patient"):
        allowed.setup()
    shutil.copy(tmp_path / "ours" / "16.png", tmp_path / "ours" / "17.png")  # of one patient
    found = check_folder(allowed, True, tmp_path / "pairs.png")
    assert any(remark.startswith("4 images belong to more than one patient") for remark in found.remarks)
    (problem,) = check_folder(data, True, tmp_path / "pairs.png").problems
    assert problem.text.startswith("4 images belong to more than one patient")
    assert problem.places[0] == f"{tmp_path}/ours/0.png (patient p0) is {tmp_path}/ours/10.png (patient p5)"


def test_two_pictures_of_one_patient_may_be_equal(tmp_path):
    data = of_sites(tmp_path / "ours", {1: picture(0)})
    data.setup()
    assert len(data.assignment) == 20
    with refusals.refused(DataError, "'ours'"):  # without patients every copy is one too many
        of_sites(tmp_path / "ours", {1: picture(0)}, patient=None).setup()
