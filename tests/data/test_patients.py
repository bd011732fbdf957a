"""Spellings of one id are one patient."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hospital_source import make_records, ready
from own_tables import opened, people, picture, write_table

from fedlit.data import ImageTable, Organisations
from fedlit.data.patients import keys, united
from fedlit.data.records import check_records
from fedlit.data.xrays.check import check_folder

SAME = (
    ("1", "01"), ("1", "1.0"), ("1", " 1 "), ("0", "000"), ("1.5", "01.50"), ("p1", " p1"), ("7", "7."), ("p1", "P1"),
    ("P-12", "p12"), ("P\u201312", "P12"), ("M\u00fcller", "Mu\u0308ller"), ("p1", "p\u200b1"), ("\uff11\uff12", "12"),
)  # fmt: skip
OTHERS = (
    ("1", "10"), ("p1", "p01"), ("1.2.3", "1.2.30"), ("1e2", "100"), ("-1", "1"), ("1-12", "11-2"), ("a-b", "ab"),
)  # fmt: skip


def test_spellings_of_one_patient_and_of_two():
    for one, other in (*SAME, *OTHERS):
        assert len(set(keys(np.array([one, other])))) == (1 if (one, other) in SAME else 2), (one, other)


def test_the_first_spelling_is_kept_and_counted():
    one, note = united(np.array(["01", "2", "1", "1.0", "b", "2"]))
    assert one.tolist() == ["01", "2", "01", "01", "b", "2"]
    assert "1 patient with 3 images is spelled in more than one way ('01' and '1' and '1.0')" in note
    given = np.array(["0001", "0002", "0001"])
    one, note = united(given)
    assert one is given
    assert note == ""


def spelled(folder: Path, *spellings: str) -> Path:
    """A table of two images for each of twenty patients; the second one's id is spelled in these ways."""
    ids = [spellings[n // 2 % len(spellings)].format(n // 2 + 1) if n % 2 else str(n // 2 + 1) for n in range(40)]
    return write_table(folder, people(patient=ids))


def test_a_patient_with_two_spellings_is_in_one_split_and_that_is_said(tmp_path):
    data = opened(spelled(tmp_path, "0{}", "{}.0", "{}"))
    with pytest.warns(UserWarning, match=r"\d+ patients with \d+ images are spelled in more than one way"):
        data.setup()
    splits = data.assignment.assign(number=data.assignment["image"].str[:-4].astype(int) // 2)
    assert (splits.groupby("number")["split"].nunique() == 1).all()
    assert (splits.groupby("number")["patient"].nunique() == 1).all()
    assert any("spelled in more than one way" in remark for remark in check_folder(data).remarks)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        opened(spelled(tmp_path / "one", "{}")).setup()


def test_exact_ids_stay_apart(tmp_path):
    found = make_records(tmp_path)
    found.patients = np.array(["3.1", "3.10", *found.patients[2:].tolist()])
    with pytest.warns(UserWarning, match=r"same_person: exact"):
        assert len(set(check_records(found).patients[:2])) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_records(found, exact=True).patients[:2].tolist() == ["3.1", "3.10"]
    data = ready(opened(spelled(tmp_path / "ours", "0{}"), same_person="exact"))
    assert data.assignment["patient"].nunique() == 40


def test_one_id_in_two_sources_may_be_one_person(tmp_path):
    """Two tables of people with the same ids, of which p0 to p4 are in the test of the first, and other pictures."""
    written = {"A": people(split=["test"] * 10 + ["train_val"] * 30), "B": people()}
    files = {
        name: write_table(tmp_path / name, columns, {n: picture(100 * start + n) for n in range(40)})
        for start, (name, columns) in enumerate(written.items())
    }

    def two_hospitals(**options) -> Organisations:
        given = {"image": "file", "patient": "patient", "labels": ["Edema"]}
        tables = {"A": ImageTable(files["A"], split="split", **given), "B": ImageTable(files["B"], **given)}
        return Organisations(tables, image_size=16, cache_dir=str(tmp_path / "cache"), augment=False, **options)

    apart = ready(two_hospitals())
    assert apart.assignment["patient"].nunique() == 40
    data = ready(two_hospitals(patients="shared"))
    assert data.assignment["patient"].nunique() == 20
    assert data.assignment.groupby("patient")["split"].nunique().max() == 1
    test = data.assignment.query("split == 'test'")
    assert {f"p{n}" for n in range(5)} <= set(test["patient"])
    assert any("are in several sources and were divided differently" in note for note in data.notes)
