"""The check of a folder of chest X-rays: counts, gaps, damage, equal images, and folders that share them."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dicom_files import write_dicom
from own_tables import data_check, people, picture, write_table
from PIL import Image
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.data import NIHChestXray14, xrays
from fedlit.data.tables import numbers, read_table
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.check import check_folder, compare_folders, inspect_image, readers, recognise
from fedlit.data.xrays.checked import Check, Problem
from fedlit.data.xrays.reading import Reading

ROWS = "image,patient,split,A,B\n0.png,p0,train,1,0\n1.png,p0,train,,1\n2.png,p1,val,-1,0\n3.png,p2,test,0,0\n"


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


class TestCheck:
    def test_a_well_folder(self, folder: Path):
        found = checked(folder)
        assert found.problems == []
        assert found.remarks[0] == "2 lateral images are left out"
        assert "1 of 4 clients would have no image" in found.remarks[1]
        assert found.positives is None
        assert [(p.kind, p.size, p.digest) for p in found.pictures] == [("PNG, 8-bit grey", (30, 20), "")] * 4
        assert list(found.labels().columns) == [
            "harmonised",
            "positives",
            "negatives",
            "uncertain",
            "blank",
            "prevalence",
        ]
        assert list(found.labels().itertuples(name=None)) == [("A", "", 1, 1, 1, 1, 0.25), ("B", "", 1, 3, 0, 0, 0.25)]

    def test_pictures_are_hashed_only_where_they_are_decoded(self, folder: Path):
        digests = [picture.digest for picture in checked(folder, decode=True).pictures]
        assert len(set(digests)) == 4
        assert all(digests)

    def test_missing_images_are_named_with_their_lines(self, folder: Path):
        for name in ("1.png", "3.png"):
            (folder / name).unlink()
        found = checked(folder, decode=True)
        assert only(found).text.startswith("2 of 4 images are missing; add them")
        assert only(found).places == [f"{folder}/1.png (tiny.csv, line 3)", f"{folder}/3.png (tiny.csv, line 5)"]
        assert [picture is None for picture in found.pictures] == [False, True, False, True]

    def test_lines_of_a_packed_label_file(self, folder: Path):
        (folder / "tiny.csv.gz").write_bytes(gzip.compress((folder / "tiny.csv").read_bytes()))
        (folder / "tiny.csv").unlink()
        (folder / "2.png").unlink()
        assert only(checked(folder)).places == [f"{folder}/2.png (tiny.csv.gz, line 4)"]

    def test_a_name_within_another_is_not_its_line(self, tmp_path: Path):
        write(tmp_path, "image,patient,A,B\n12.png,p0,1,0\n2.png,p1,0,1\n")
        (tmp_path / "2.png").unlink()
        assert only(checked(tmp_path)).places == [f"{tmp_path}/2.png (tiny.csv, line 3)"]

    def test_a_damaged_header_is_found_without_decoding(self, folder: Path):
        (folder / "0.png").write_bytes(b"no picture")
        (folder / "1.png").write_bytes(b"")
        assert only(checked(folder)).text.startswith("2 of 4 images cannot be used")
        assert only(checked(folder)).places == [
            f"{folder}/0.png (tiny.csv, line 2): not an image, or its header is damaged",
            f"{folder}/1.png (tiny.csv, line 3): expected an image file, found an empty file",
        ]

    def test_damage_behind_the_header_takes_decoding(self, folder: Path):
        whole = (folder / "2.png").read_bytes()
        (folder / "2.png").write_bytes(whole[: len(whole) // 2])
        assert checked(folder).problems == []
        (place,) = only(checked(folder, decode=True)).places
        assert place.startswith(f"{folder}/2.png (tiny.csv, line 4): cannot be decoded: ")

    def test_a_picture_of_one_tone_shows_nothing(self, folder: Path):
        for name in ("0.png", "3.png"):  # equal, yet no duplicates
            Image.new("L", (20, 20), 7).save(folder / name)
        assert [place.partition("): ")[2] for place in only(checked(folder, decode=True)).places] == [
            "shows nothing: all pixels are 7 of 255"
        ] * 2

    def test_bit_depths(self, folder: Path):
        save(folder / "1.png", 1, np.uint16)
        found = checked(folder, decode=True)
        assert found.problems == []
        assert found.pictures[1].kind == "PNG, 16-bit grey"
        assert (
            "images differ in their bit depth: 3 of 8 bits and 1 of 16 bits; each is scaled by its own" in found.remarks
        )
        Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(folder / "f.tiff")
        assert inspect_image(folder / "f.tiff").problem == "floating point pixels; convert it to 8 or 16 bits"

    def test_the_same_picture_of_two_patients(self, folder: Path):
        save(folder / "3.png", 0)
        save(folder / "1.png", 0)  # of the same patient as 0.png
        assert checked(folder).problems == []
        problem = only(checked(folder, decode=True))
        assert problem.text.startswith("1 images belong to more than one patient")
        assert "RSNA Pneumonia and SIIM Pneumothorax images are NIH images" in problem.text
        assert problem.places == [f"{folder}/0.png (patient p0) is {folder}/3.png (patient p2)"]

    def test_a_patient_in_two_splits(self, folder: Path):
        write(folder, ROWS.replace("2.png,p1", "2.png,p0"))
        assert only(checked(folder)).text.startswith("1 patients are in more than one official split")
        assert only(checked(folder)).places == ["patient 'p0' in train (2 images) and val (1 images)"]
        assert checked(folder, official_split=False).problems == []

    def test_an_image_twice(self, folder: Path):
        write(folder, ROWS + "1.png,p0,train,0,0\n")
        assert only(checked(folder)) == Problem("1 images are listed more than once", ["1.png (tiny.csv, line 3)"])

    def test_what_a_reader_refuses_is_a_problem(self, folder: Path):
        write(folder, ROWS.replace("-1", "2"))
        found = checked(folder)
        assert found.reading is None
        assert only(found).text.startswith(
            f"{folder}/tiny.csv, line 4: column 'A': expected 1, 0, -1 or nothing, found"
        )

    def test_what_names_no_file_gets_the_folder(self, folder: Path):
        (folder / "tiny.csv").write_text(ROWS + 'a,"b\n')
        assert only(checked(folder)).text.startswith(f"{folder}")

    def test_labels_that_no_image_has(self, folder: Path):
        write(folder, ROWS.replace("1\n", "0\n"))
        assert "no image is positive for B" in checked(folder).remarks

    def test_the_harmonised_names(self, tmp_path: Path):
        (tmp_path / "images").mkdir()
        save(tmp_path / "images" / "a.png", 0)
        header = "Image Index,Finding Labels,Patient ID\n"
        (tmp_path / "Data_Entry_2017.csv").write_text(header + "a.png,Effusion|Hernia,1\n")
        labels = check_folder(NIHChestXray14(tmp_path)).labels()
        assert tuple(labels.loc["Effusion"]) == ("Pleural Effusion", 1, 0, 0, 0, 1)
        assert labels["harmonised"]["Pleural_Thickening"] == "Pleural Thickening"


def test_the_header_and_the_pixels_of_a_dicom_file(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 4096, (20, 30), dtype=np.uint16)
    picture = inspect_image(write_dicom(tmp_path / "a.dicom", pixels, "MONOCHROME1", BitsStored=12), decode=True)
    assert (picture.kind, picture.size, picture.problem) == ("DICOM, 12-bit MONOCHROME1", (30, 20), "")
    assert picture.digest


# What `fit` would refuse or warn of

SITES = ["north", "north", "south", "south"]


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ([*SITES, "north", "nroth", *SITES[2:], *SITES * 8], "client 'nroth': expected at least 2 training images"),
        (["East", "East", "EAST", "EAST"] * 10, "client names 'EAST' and 'East' are the same"),
    ],
    ids=["a typo", "case"],
)
def test_sites_that_cannot_be_clients(tmp_path, fedlit_cli, sites, said):
    code, out = data_check(fedlit_cli, str(write_table(tmp_path, people(site=sites))))
    assert code == 1
    assert said in out


def test_twelve_of_sixteen_bits(tmp_path, fedlit_cli):
    deep = {n: Image.fromarray(np.asarray(picture(n, 64)).astype(np.uint16) << 4) for n in range(40)}
    table = write_table(tmp_path, people(), deep)
    code, out = data_check(fedlit_cli, str(table))
    assert code == 0
    assert "if only 12 of their 16 bits are used, set data.depth to 12" in out
    assert "set data.depth" not in data_check(fedlit_cli, f"{table} --set '{{depth: 12}}'")[1]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"NumberOfFrames": 3}, "3 in MONOCHROME2"),
        ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}, "1 in RGB"),
        ({"Rows": None, "Columns": None, "BitsStored": None, "PixelData": None}, "one without pixels"),
    ],
)
def test_what_a_dicom_header_says(tmp_path, fedlit_cli, change, word):
    table = write_table(tmp_path, people())
    (tmp_path / "3.png").unlink()
    samples = change.get("NumberOfFrames", 1) * change.get("SamplesPerPixel", 1)
    write_dicom(tmp_path / "3.dcm", np.arange(576 * samples).astype(np.uint8).reshape(samples, 24, 24), **change)
    table.write_text(table.read_text().replace("3.png,", "3.dcm,", 1).replace("\n13.dcm", "\n13.png"))
    code, out = data_check(fedlit_cli, str(table))
    assert code == 1
    assert word in out


class TestCompare:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        """A folder that shares nothing with the first."""
        write(tmp_path / "other", ROWS.replace(".png,p", "b.png,q"), first=10)
        return tmp_path / "other"

    def test_nothing_shared(self, folder: Path, other: Path):
        assert compare_folders([checked(folder, decode=True), checked(other, decode=True)]) == []

    def test_the_same_names(self, folder: Path, other: Path):
        write(other, ROWS.replace(".png,p", ".png,q"), first=10)
        (problem,) = compare_folders([checked(folder, decode=True), checked(other, decode=True)])
        assert problem.text.startswith(f"4 images are in {folder} and {other} under the same name: ")
        assert problem.places == ["0.png", "1.png", "2.png", "3.png"]

    def test_the_same_patients(self, folder: Path, other: Path):
        write(other, "image,patient,A,B\nx.png,p1,1,0\ny.png,q,0,1\n", first=10)
        (problem,) = compare_folders([checked(folder), checked(other)])
        assert problem.text.startswith(f"1 patients are in {folder} and {other}: ")
        assert problem.places == ["patient p1"]

    def test_patients_of_two_sources_may_be_called_alike(self, folder: Path, other: Path):
        class Elsewhere(Tiny):
            source = "Elsewhere"

        write(other, "image,patient,A,B\nx.png,p1,1,0\n", first=10)
        assert compare_folders([checked(folder), check_folder(Elsewhere(other))]) == []

    def test_the_same_pictures(self, folder: Path, other: Path):
        save(other / "2b.png", 1)
        assert compare_folders([checked(folder), checked(other)]) == []
        (problem,) = compare_folders([checked(folder, decode=True), checked(other, decode=True)])
        assert problem.text.startswith(
            f"1 images are equal in {folder} and {other}: a patient in two splits or at two sites"
        )
        assert problem.places == [f"{folder}/1.png is {other}/2b.png"]

    def test_a_folder_that_cannot_be_read_is_left_out(self, folder: Path, other: Path):
        (other / "tiny.csv").write_text("nothing\n")
        assert compare_folders([checked(folder), checked(other)]) == []


class TestRecognise:
    @pytest.fixture(autouse=True)
    def tiny_ships(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(xrays, "Tiny", Tiny, raising=False)
        monkeypatch.setattr(xrays, "__all__", ["NIHChestXray14", "Tiny"])

    def test_by_its_files(self, folder: Path):
        assert readers() == {"NIH": NIHChestXray14, "Tiny": Tiny}
        assert recognise(folder) is Tiny
        assert recognise(folder, "NIH") is NIHChestXray14

    def test_no_folder(self, folder: Path):
        with refused(ConfigError, "nowhere"):
            recognise(folder / "nowhere", "NIH")

    def test_like_none(self, tmp_path: Path):
        (tmp_path / "labels.csv").touch()
        with pytest.raises(ConfigError) as refused:
            recognise(tmp_path)
        assert "looks like none of the data sets: found 'labels.csv'\n  NIH: expected the official" in str(
            refused.value
        )
        assert "\n  Tiny: expected tiny.csv and the images next to it" in str(refused.value)

    def test_like_two(self, folder: Path):
        pd.DataFrame().to_csv(folder / "Data_Entry_2017.csv")
        with refused(ConfigError, "NIH and like Tiny"):
            recognise(folder)
