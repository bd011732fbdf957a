"""The check of a folder of chest X-rays: counts, gaps, damage, equal images, and folders that share them."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dicom_files import write_dicom
from own_tables import opened, people, picture, write_columns, write_table
from PIL import Image
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.data import NIHChestXray14, xrays
from fedlit.data.tables import numbers, read_table
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.check import check_folder, compare_folders, readers, recognise
from fedlit.data.xrays.checked import Check, Problem
from fedlit.data.xrays.reading import Reading

ROWS = "image,patient,split,A,B\n0.png,p0,train,1,0\n1.png,p0,train,,1\n2.png,p1,val,-1,0\n3.png,p2,test,0,0\n"

Change = Callable[[Path], object]


class Tiny(ChestXrays):
    """A data set of a few rows, packed or not."""

    source = "Tiny"
    labels = ("A", "B")
    layout = "expected tiny.csv and the images next to it"
    needs = ("tiny.csv", "tiny.csv.gz")

    def read(self) -> Reading:
        file = next(path for pattern in self.needs for path in self.root.glob(pattern))
        table = read_table(file, ("image", "patient", *self.labels), ("image", "patient"))
        rows = table.rows
        return Reading(
            files=[self.root / name for name in rows["image"]],
            names=rows["image"].to_numpy(dtype=str),
            patients=rows["patient"].to_numpy(dtype=str),
            labels=numbers(table, self.labels, (1, 0, -1)),
            source=file,
            splits=rows["split"].to_numpy(dtype=str) if "split" in rows else None,
            table=rows,
            notes=["2 lateral images are left out"],
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images of three patients, with nothing wrong."""
    write(tmp_path)
    return tmp_path


def write(root: Path, rows: str = ROWS, first: int = 0) -> None:
    """A label file, and images whose pixels follow from ``first``."""
    root.mkdir(exist_ok=True)
    (root / "tiny.csv").write_text(rows)
    for index, line in enumerate(rows.splitlines()[1:]):
        save(root / line.partition(",")[0], first + index)


def save(file: Path, seed: int, dtype: type = np.uint8) -> None:
    pixels = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, (20, 30), dtype=dtype, endpoint=True)
    Image.fromarray(pixels).save(file)


def checked(root: Path, decode: bool = False, **options) -> Check:
    return check_folder(Tiny(root, **options), decode)


def only(found: Check) -> Problem:
    (problem,) = found.problems
    return problem


def test_a_well_folder(folder: Path):
    found = checked(folder)
    assert found.problems == []
    assert found.remarks[0] == "2 lateral images are left out"
    assert "1 of 4 clients would have no image" in found.remarks[1]
    assert found.positives is None
    assert [(p.kind, p.size, p.digest) for p in found.pictures] == [("PNG, 8-bit grey", (30, 20), "")] * 4
    columns = ["harmonised", "positives", "negatives", "uncertain", "blank", "prevalence"]
    assert list(found.labels().columns) == columns
    assert list(found.labels().itertuples(name=None)) == [("A", "", 1, 1, 1, 1, 0.25), ("B", "", 1, 3, 0, 0, 0.25)]
    digests = [picture.digest for picture in checked(folder, decode=True).pictures]
    assert len(set(digests)) == 4
    assert all(digests)


def unlink(*names: str) -> Change:
    return lambda root: [(root / name).unlink() for name in names]


def packed(root: Path) -> None:
    (root / "tiny.csv.gz").write_bytes(gzip.compress((root / "tiny.csv").read_bytes()))
    unlink("tiny.csv", "2.png")(root)


def similar_names(root: Path) -> None:
    write(root, "image,patient,A,B\n12.png,p0,1,0\n2.png,p1,0,1\n")
    unlink("2.png")(root)


def no_images(root: Path) -> None:
    (root / "0.png").write_bytes(b"no picture")
    (root / "1.png").write_bytes(b"")


def cut_off(root: Path) -> None:
    whole = (root / "2.png").read_bytes()
    (root / "2.png").write_bytes(whole[: len(whole) // 2])


def one_tone(root: Path) -> None:
    for name in ("0.png", "3.png"):  # equal, yet no duplicates
        Image.new("L", (20, 20), 7).save(root / name)


def copies(root: Path) -> None:
    save(root / "3.png", 0)
    save(root / "1.png", 0)  # of the same patient as 0.png


def rows(old: str, new: str) -> Change:
    return lambda root: write(root, ROWS.replace(old, new))


PROBLEMS = {
    "missing images": (unlink("1.png", "3.png"), "2 of 4 images are missing; add them", [
        "{}/1.png (tiny.csv, line 3)", "{}/3.png (tiny.csv, line 5)"]),
    "a missing image of a packed table": (packed, "1 of 4", ["{}/2.png (tiny.csv.gz, line 4)"]),
    "a name within another": (similar_names, "1 of 2", ["{}/2.png (tiny.csv, line 3)"]),
    "damaged headers": (no_images, "2 of 4 images cannot be used", [
        "{}/0.png (tiny.csv, line 2): not an image, or its header is damaged",
        "{}/1.png (tiny.csv, line 3): expected an image file, found an empty file"]),
    "a patient in two splits": (rows("2.png,p1", "2.png,p0"), "1 patients are in more than one official split", [
        "patient 'p0' in train (2 images) and val (1 images)"]),
    "an image twice": (lambda root: write(root, ROWS + "1.png,p0,train,0,0\n"),
        "1 images are listed more than once", ["1.png (tiny.csv, line 3)"]),
    "a label that its reader refuses": (rows("-1", "2"), "{}/tiny.csv, line 4: column 'A': expected 1, 0, -1", []),
    "an error that names no file": (lambda root: (root / "tiny.csv").write_text(ROWS + 'a,"b\n'), "{}", []),
}  # fmt: skip
DECODED = {
    "damage behind the header": (cut_off, "1 of 4", ["{}/2.png (tiny.csv, line 4): cannot be decoded: "]),
    "pictures of one tone": (one_tone, "2 of 4", [
        f"{{}}/{name}.png (tiny.csv, line {name + 2}): shows nothing: all pixels are 7 of 255" for name in (0, 3)]),
    "a picture of two patients": (copies, "1 images belong to more than one patient", [
        "{}/0.png (patient p0) is {}/3.png (patient p2)"]),
}  # fmt: skip


@pytest.mark.parametrize("case", [*PROBLEMS, *DECODED])
def test_a_problem_has_its_places(folder: Path, case: str):
    change, text, places = (PROBLEMS | DECODED)[case]
    change(folder)
    if case in DECODED:
        assert checked(folder).problems == []
    problem = only(checked(folder, decode=case in DECODED))
    assert problem.text.startswith(text.format(folder))
    assert len(problem.places) == len(places)
    for found, place in zip(problem.places, places, strict=True):
        assert found.startswith(place.format(folder, folder))
    if "split" in case:
        assert checked(folder, official_split=False).problems == []


def test_remarks_on_bit_depths_and_labels(folder: Path):
    save(folder / "1.png", 1, np.uint16)
    found = checked(folder, decode=True)
    assert found.problems == []
    assert found.pictures[1].kind == "PNG, 16-bit grey"
    assert any("3 of 8 bits and 1 of 16 bits; each is scaled by its own" in remark for remark in found.remarks)
    write(folder, ROWS.replace("1\n", "0\n"))
    assert "no image is positive for B" in checked(folder).remarks


def test_twelve_of_sixteen_bits(tmp_path):
    deep = {n: Image.fromarray(np.asarray(picture(n)).astype(np.uint16) << 4) for n in range(40)}
    table = write_table(tmp_path, people(), deep)
    advice = "if only 12 of their 16 bits are used, set data.depth to 12"
    assert any(advice in remark for remark in check_folder(opened(table)).remarks)
    assert not any("set data.depth" in remark for remark in check_folder(opened(table, depth=12)).remarks)


HEADERS = {
    "3 in MONOCHROME2": {"NumberOfFrames": 3},
    "1 in RGB": {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3},
    "one without pixels": {"Rows": None, "Columns": None, "BitsStored": None, "PixelData": None},
}


def test_what_dicom_headers_say(tmp_path):
    columns = people(file=[*(f"{n}.dcm" for n in range(3)), *(f"{n}.png" for n in range(3, 40))])
    write_table(tmp_path, people())
    for number, change in enumerate(HEADERS.values()):
        samples = change.get("NumberOfFrames", 1) * change.get("SamplesPerPixel", 1)
        pixels = np.arange(576 * samples).astype(np.uint8).reshape(samples, 24, 24)
        write_dicom(tmp_path / f"{number}.dcm", pixels, **change)
    places = only(check_folder(opened(write_columns(tmp_path / "ours.csv", columns)))).places
    assert all(word in place for word, place in zip(HEADERS, places, strict=True))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder that shares nothing with the first."""
    write(tmp_path / "other", ROWS.replace(".png,p", "b.png,q"), first=10)
    return tmp_path / "other"


class Elsewhere(Tiny):
    """Another data set, whose patients may have the same names."""

    source = "Elsewhere"


SAME = "image,patient,A,B\nx.png,p1,1,0\ny.png,q,0,1\n"
SHARED = {
    "names": (lambda other: write(other, ROWS.replace(".png,p", ".png,q"), first=10), "4 images are in {} and {} under "
        "the same name: ", ["0.png", "1.png", "2.png", "3.png"]),
    "patients": (lambda other: write(other, SAME, first=10), "1 patients are in {} and {}: ", ["patient p1"]),
    "pictures": (lambda other: save(other / "2b.png", 1), "1 images are equal in {} and {}: a patient in two splits or "
        "at two sites", ["{}/1.png is {}/2b.png"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED)
def test_what_two_folders_share(folder: Path, other: Path, case: str):
    change, text, places = SHARED[case]
    change(other)
    assert (compare_folders([checked(folder), checked(other)]) == []) == (case == "pictures")
    (problem,) = compare_folders([checked(folder, decode=True), checked(other, decode=True)])
    assert problem.text.startswith(text.format(folder, other))
    assert problem.places == [place.format(folder, other) for place in places]


def test_folders_that_share_nothing_or_cannot_be_compared(folder: Path, other: Path):
    assert compare_folders([checked(folder, decode=True), checked(other, decode=True)]) == []
    write(other, SAME, first=10)
    assert compare_folders([checked(folder), check_folder(Elsewhere(other))]) == []
    (other / "tiny.csv").write_text("nothing\n")
    assert compare_folders([checked(folder), checked(other)]) == []


def test_a_folder_is_recognised_by_its_files(folder: Path, tmp_path_factory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(xrays, "Tiny", Tiny, raising=False)
    monkeypatch.setattr(xrays, "__all__", ["NIHChestXray14", "Tiny"])
    assert readers() == {"NIH": NIHChestXray14, "Tiny": Tiny}
    assert recognise(folder) is Tiny
    assert recognise(folder, "NIH") is NIHChestXray14
    with refused(ConfigError, "nowhere"):
        recognise(folder / "nowhere", "NIH")
    pd.DataFrame().to_csv(folder / "Data_Entry_2017.csv")
    with refused(ConfigError, "NIH and like Tiny"):
        recognise(folder)
    other = tmp_path_factory.mktemp("other")
    (other / "labels.csv").touch()
    names = "looks like none of the data sets: found ", "\n  NIH: expected the official", "\n  Tiny: "
    with refused(ConfigError, *names):
        recognise(other)
