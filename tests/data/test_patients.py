"""One patient has one id: other spellings of it are no other patient."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_federated import make_records

from fedlit.data import NIHChestXray14
from fedlit.data.patients import keys, united
from fedlit.data.records import check_records

HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "01"), ("1", "1.0"), ("1", " 1 "), ("0", "000"), ("1.5", "01.50"), ("p1", " p1"), ("7", "7.")],
)
def test_spellings_of_one_patient(one, other):
    assert len(set(keys(np.array([one, other])))) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("1", "10"), ("p1", "p01"), ("1.2.3", "1.2.30"), ("1e2", "100"), ("-1", "1"), ("a", "A")]
)
def test_what_is_no_number_stays_what_it_is(one, other):
    assert len(set(keys(np.array([one, other])))) == 2


def test_the_first_spelling_is_kept_and_counted():
    one, note = united(np.array(["01", "2", "1", "1.0", "b", "2"]))
    assert one.tolist() == ["01", "2", "01", "01", "b", "2"]
    assert "1 patient with 3 images is spelled in more than one way ('01' and '1' and '1.0')" in note


def test_ids_of_one_spelling_are_left_alone():
    given = np.array(["0001", "0002", "0001"])
    one, note = united(given)
    assert one is given
    assert note == ""


def nih(folder: Path, spellings: list[str]) -> NIHChestXray14:
    """A copy of NIH with two images for each of forty patients; the second one's id is spelled in these ways."""
    (folder / "images").mkdir(parents=True)
    rows = [HEADER]
    for n in range(80):
        patient = n // 2 + 1
        spelled = spellings[patient % len(spellings)].format(patient) if n % 2 else str(patient)
        rows.append(f"{n:03d}.png,{'Effusion' if n % 3 else 'No Finding'},0,{spelled},50,M,PA")
        Image.fromarray(np.full((8, 8), 3 * n, dtype=np.uint8)).save(folder / "images" / f"{n:03d}.png")
    (folder / "Data_Entry_2017_v2020.csv").write_text("\n".join(rows) + "\n")
    return NIHChestXray14(folder, image_size=8, cache_dir=str(folder / "cache"), augment=False)


def test_a_patient_with_two_spellings_is_in_one_split_and_that_is_said(tmp_path):
    data = nih(tmp_path, ["0{}", "{}.0", "{}"])
    with pytest.warns(UserWarning, match=r"\d+ patients with \d+ images are spelled in more than one way"):
        data.setup()
    splits = data.assignment.assign(number=data.assignment["image"].str[:3].astype(int) // 2)
    assert (splits.groupby("number")["split"].nunique() == 1).all()
    assert (splits.groupby("number")["patient"].nunique() == 1).all()


def test_nothing_is_said_of_one_spelling(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "classes without")
        nih(tmp_path, ["{}"]).setup()


def test_the_check_of_a_folder_says_it(tmp_path, fedlit_cli):
    nih(tmp_path, ["0{}", "{}"])
    _, out, _ = fedlit_cli(f"data check {tmp_path}")
    assert "spelled in more than one way" in " ".join(out.split())


@pytest.mark.parametrize("blank", [np.nan, None, "", " "])
def test_an_image_of_nobody_is_refused(blank, tmp_path):
    found = make_records(tmp_path)
    found.patients = found.patients.astype(object)
    found.patients[3] = blank
    with pytest.raises(ValueError, match="expected a patient for each image, found none for 1 of 240"):
        check_records(found)
