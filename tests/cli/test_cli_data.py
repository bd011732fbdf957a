"""``fedlit data check`` and ``fedlit list labels``, as a user runs them."""

from pathlib import Path

import numpy as np
import pytest
from edits import replace_in
from PIL import Image

pytestmark = pytest.mark.usefixtures("folder")

MINI = Path(__file__).parents[3] / "shared" / "data" / "nih-cxr14-mini"
HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position\n"


def write_nih(root: str, patients: range = range(1, 5)) -> Path:
    """Write a small download in the layout of NIH: two images per patient, drawn from its number."""
    (Path(root) / "images").mkdir(parents=True)
    rows = []
    for patient in patients:
        for number in range(2):
            name = f"{patient:08d}_{number:03d}.png"
            pixels = np.random.default_rng([patient, number]).integers(0, 256, (32, 32), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(root) / "images" / name)
            rows.append(f"{name},{'Effusion|Mass' if number else 'No Finding'},{number},{patient},50,F,PA\n")
    (Path(root) / "Data_Entry_2017_v2020.csv").write_text(HEADER + "".join(rows))
    return Path(root)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def check(fedlit_cli):
    """A function that runs ``fedlit data check``, which must end with a code; returns the output."""

    def run(line: str, code: int = 0) -> str:
        ended = fedlit_cli(f"data check {line}")
        assert ended.code == code, ended.err
        return ended.out

    return run


class TestOneFolder:
    def test_a_well_one(self, fedlit_cli):
        write_nih("nih")
        code, out, err = fedlit_cli("data check nih --decode")
        assert (code, err.strip()) == (0, "")  # rich before 15 ends a bar with a blank line
        assert out.startswith("NIH: nih\n")
        for line in (
            "images 8, 0 of them missing",
            "patients 4",
            "images per patient 2 to 2, median 2, mean 2.00",
            "splits no official split; data.split divides the patients",
            "files PNG, 8-bit grey: 8",
            "sizes 32 x 32: 8",
            "Effusion Pleural Effusion 4 4 0 0 50.00%",
            "note: no image is positive for Atelectasis, Cardiomegaly",
            "no problems; the images were decoded",
        ):
            assert line in words(out)

    def test_missing_and_damaged_images_are_both_told(self, check):
        root = write_nih("nih")
        (root / "images" / "00000002_000.png").unlink()
        (root / "images" / "00000003_001.png").write_bytes(b"\x89PNG, says who?")
        out = check("nih", 1)
        assert "8, 1 of them missing" in out
        assert "problem: 1 of 8 images are missing; add them, remove their rows, or set data.missing to drop\n" in out
        assert "  nih/images/00000002_000.png (Data_Entry_2017_v2020.csv, line 4)\n" in out
        assert "  nih/images/00000003_001.png (Data_Entry_2017_v2020.csv, line 7): not an image, or its header" in out
        assert "no problems" not in out

    def test_many_places_are_counted(self, check):
        root = write_nih("nih")
        for file in (root / "images").iterdir():
            file.unlink()
        places = words(check("nih", 1))
        assert places.endswith("00000003_000.png (Data_Entry_2017_v2020.csv, line 6) ... and 3 more")

    def test_an_unknown_label_has_its_line(self, check):
        file = write_nih("nih") / "Data_Entry_2017_v2020.csv"
        replace_in(file, "Effusion|Mass", "Efusion|Mass")
        out = check("nih", 1)
        assert f"problem: {file}, line 3: unknown label 'Efusion' in 'Efusion|Mass'; similar names are Effusion" in out
        assert "The images were not inspected; fix this first" in out

    def test_arguments_of_the_data_set(self, check):
        root = write_nih("nih")
        (root / "test_list.txt").write_text("00000001_000.png\n")
        assert "train_val_list.txt is missing" in check("nih", 1)
        check("nih --set '{official_split: false}'")

    def test_groups_are_counted(self, check):
        file = write_nih("nih") / "Data_Entry_2017_v2020.csv"
        replace_in(file, ",F,", ",M,")
        counted = words(check("nih --set '{groups: [sex, view]}'"))
        assert "sex female 7 of 4 patients sex male 1 of 1 patients view " in counted
        out = check("nih --set '{groups: [sax]}'", 1)
        assert f"data.groups: {file}: expected sex, age, view or a column, found 'sax'; similar names are sex" in out

    def test_official_splits_are_counted(self, check):
        root = write_nih("nih")
        names = sorted(file.name for file in (root / "images").iterdir())
        (root / "test_list.txt").write_text("\n".join(names[:2]))
        (root / "train_val_list.txt").write_text("\n".join(names[2:]))
        assert "test 2 images of 1 patients; train_val 6 images of 3 patients" in check("nih")

    @pytest.mark.slow
    @pytest.mark.skipif(not MINI.is_dir(), reason="needs ../shared/data/nih-cxr14-mini")
    def test_real_images(self, check):
        out = words(check(MINI))
        assert "images 1,000, 0 of them missing patients 682" in out
        assert "Pneumonia Pneumonia 500 500 0 0 50.00%" in out


class TestSeveralFolders:
    def test_apart(self, check):
        write_nih("one"), write_nih("other", range(5, 9))
        out = check("one other --decode")
        assert "NIH: one" in out
        assert "NIH: other" in out

    def test_names_and_patients_are_compared_without_decoding(self, check):
        write_nih("one"), write_nih("other", range(4, 8))
        out = check("one other", 1)
        assert out.count("no problems") == 2  # within each
        assert "problem: 2 images are in one and other under the same name: a patient in two splits" in out
        assert "problem: 1 patients are in one and other: " in out
        assert "  patient 4\n" in out


MISTAKES = {
    "no folder": ("data check nowhere", "nowhere: no such folder\n"),
    "no data set": ("data check empty", "empty looks like none of the data sets: found an empty folder\n"),
    "one of two": ("data check nih empty", "empty looks like none of the data sets"),
    "no such source": ("data check nih --source Nih", "invalid choice: 'Nih'"),
    "no such argument": ("data check nih --set '{official_splt: false}'", "did you mean official_split"),
    "an argument of another type": (
        "data check nih --set '{official_split: maybe}'",
        "Expected a bool. Got value: maybe",
    ),
    "no root": ("data check", "`fedlit data check --help` describes the options"),
    "no such list": ("list label", "labels, reproductions or checks, found 'label'; did you mean labels?"),
}
"""Command lines with mistakes, and the errors."""


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str, fedlit_cli):
    write_nih("nih"), Path("empty").mkdir()
    line, answer = MISTAKES[case]
    code, out, err = fedlit_cli(line)
    assert (code, out) == (2, "")
    assert answer in err
    assert err.startswith("fedlit: error: ")


def test_a_named_source_says_what_is_not_there(check):
    Path("empty").mkdir()
    out = check("empty --source NIH", 1)
    assert "problem: empty: found an empty folder; expected the official layout of NIH ChestX-ray14" in out


def test_list_labels(fedlit_cli):
    lines = [words(line) for line in fedlit_cli("list labels").succeeded().splitlines()]
    assert lines[0] == "class NIH CheXpert MIMIC MIMIC-LT PadChest VinDr"
    assert "Nodule/Mass - - - - - Nodule/Mass" in lines
    assert "Fracture - Fracture Fracture Fracture fracture any of Rib fracture, Clavicle fracture" in lines
