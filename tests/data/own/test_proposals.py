"""`data check` proposes the meaning of a table's columns, and names unknown words."""

from pathlib import Path

import numpy as np
import pytest
from own_tables import data_check as check
from own_tables import people, write_columns, write_table

from fedlit.data import ImageTable
from fedlit.data.own.proposal import Proposal, propose


def test_a_column_of_labels_with_a_strange_cell_is_shown_with_its_line(tmp_path, fedlit_cli):
    cells = [str(n % 3 // 2) for n in range(40)]
    cells[7], cells[9], cells[30] = "u", "u", "o"
    code, out = check(fedlit_cli, str(write_table(tmp_path, people(Mass=cells))))
    assert code == 1
    assert "labels: [Edema, Mass]" in out
    assert "line 9: column 'Mass': expected a label" in out
    assert "'u' (lines 9, 11), 'o' (line 32)" in out


def test_numbers_and_notes_are_no_labels(tmp_path, fedlit_cli):
    columns = people(
        lesions=[str(n % 4) for n in range(40)], Sex=["01"[n // 4 % 2] for n in range(40)],
        patient_age=["01"[n // 6 % 2] for n in range(40)], Portable=["ny"[n // 8 % 2] for n in range(40)],
    )  # fmt: skip
    code, out = check(fedlit_cli, str(write_table(tmp_path, columns)))
    assert code == 0
    assert "labels: [Edema] # left out, because their names are not findings: 'Sex', 'patient_age', 'Portable'" in out
    code, out = check(fedlit_cli, f"{tmp_path}/ours.csv --set '{{labels: [Edema, Portable]}}'")
    assert code == 0
    assert "labels: [Edema, Portable]" in out


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """The folder of the 40 images that all tables of ``people`` name."""
    return write_table(tmp_path_factory.mktemp("images"), people()).parent


def proposed(folder: Path, images: Path, columns: dict[str, list[str]]) -> Proposal:
    return propose(write_columns(folder / "ours.csv", columns), images)


@pytest.mark.parametrize("name", ["PatID", "Fallnummer", "pat_nr", "Pat.-Nr.", "PID"])
def test_columns_of_patients_are_found_by_more_names(tmp_path, images, name):
    columns = people()
    columns[name] = columns.pop("patient")
    found = proposed(tmp_path, images, columns)
    assert (found.arguments["patient"], found.reasons["patient"]) == (name, "20 different")


IMAGES, PATIENTS = np.arange(40), np.random.default_rng(0).permutation(40) // 2
"""Rows, and the patient of each, in no order."""

IDS = {
    "words": np.char.add("p", (IMAGES // 2).astype(str)), "from 1": PATIENTS + 1, "from 101": PATIENTS + 101,
    "with gaps": PATIENTS * 7 + 88_000, "with gaps, sorted by patient": np.sort(PATIENTS) * 3 + 20,
    "with zeros": [f"{n:04}" for n in PATIENTS],
}  # fmt: skip
QUANTITIES = {
    "years": [str(20 + n // 2) for n in range(40)], "original_width": [str(2000 + n // 2) for n in range(40)],
    "StudyDate": [str(20200101 + n // 2) for n in range(40)], "weight": [f"{60 + n // 2}.5" for n in range(40)],
}  # fmt: skip


@pytest.mark.parametrize("kind", IDS)
def test_ids_that_repeat_are_asked_about_and_ages_sizes_and_dates_are_not(tmp_path, images, kind):
    columns = people(xyz=list(map(str, IDS[kind])), **QUANTITIES)
    del columns["patient"]
    reason = proposed(tmp_path, images, columns).reasons["patient"]
    assert reason.endswith("each image is then a patient of its own. Is it 'xyz' (20 different)?")


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("abc", PATIENTS * 3 + 20),  # such as ages
        ("abc", PATIENTS + 1950),
        ("abc", [f"{n + 20:03}Y" for n in PATIENTS]),
        ("abc", [f"{n + 1:02}.01.2020" for n in PATIENTS]),
        ("abc", [f"{n + 60}.5" for n in PATIENTS]),
        ("abc", [""] * 40),
        ("OriginalImage[Width", PATIENTS * 9 + 2000),
        ("Height]", PATIENTS * 9 + 2000),
        ("Follow-up #", PATIENTS),
    ],
)
def test_quantities_and_dates_that_repeat_are_not_asked_about(tmp_path, images, name, cells):
    columns = people(**{name: list(map(str, cells))})
    del columns["patient"]
    assert proposed(tmp_path, images, columns).reasons["patient"].endswith("each image is then a patient of its own")


def test_a_row_of_totals_is_named(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people())
    table.write_text(table.read_text() + "Summe,,20\n")
    code, out = check(fedlit_cli, str(table))
    assert code == 1
    assert "line 42: expected an image, found a row of totals ('Summe'); remove it" in out


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["frontal.png"], "{study}/frontal.png"),
        (["frontal.png", "lateral.png"], "{study}/frontal.png"),
        ([], "{study}/*"),
    ],
)
def test_a_folder_per_examination(tmp_path, fedlit_cli, names, pattern):
    columns = {"study": [f"S{n}" for n in range(40)]} | people()
    for name in names or [""]:
        of = {"file": [f"S{n}/{name or f'{n * 7919 % 1009}.png'}" for n in range(40)]}
        write_table(tmp_path / "images", of)
        for n in range(40) if name == "lateral.png" else ():
            (tmp_path / "images" / f"S{n}" / name).write_bytes((tmp_path / f"images/S{n}/frontal.png").read_bytes())
    del columns["file"]
    table = write_columns(tmp_path / "studies.csv", columns)
    code, out = check(fedlit_cli, f"{table} --root {tmp_path}/images")
    assert code == 0, out
    assert f"image: {pattern!r} # 40 of 40 rows" in out
    if not names:
        (tmp_path / "images" / "S3" / "more.png").write_bytes(b"x")
        code, out = check(fedlit_cli, f"{table} --root {tmp_path}/images --set '{{image: \"{{study}}/*\"}}'")
        assert code == 1
        assert "1 of 40 images are missing" in out


def test_positives_by_client_class_and_split_are_shown(tmp_path, fedlit_cli):
    splits = np.repeat(["train", "val", "test"], [24, 8, 8])
    ill = ["0"] * 24 + ["1"] * 8 + ["0"] * 8
    columns = people(site=np.tile(["north", "north", "south", "south"], 10), split=splits, Mass=ill)
    code, out = check(fedlit_cli, str(write_table(tmp_path, columns)))
    assert code == 0
    for word in (
        "training / validation / test, as fit divides them",
        "positives north south",
        "images 12 / 4 / 4 12 / 4 / 4",
        "Edema 0 / 0 / 0",
        "Mass 0 / 4 / 0 0 / 4 / 0",
    ):
        assert word in out.replace("│", "")
    assert "no image of train is positive for Mass" in out
    assert "no image of test is positive for Mass" in out


def test_no_validation_split_gets_a_word(tmp_path, fedlit_cli):
    columns = people(split=np.repeat(["train", "test"], [30, 10]))
    code, out = check(fedlit_cli, str(write_table(tmp_path, columns)))
    assert code == 0
    assert "no image is for validation" in out
    assert "splits: {train: train_val}" in out


def test_columns_of_few_words_that_are_not_used_are_named(tmp_path, fedlit_cli):
    columns = people(Lunge=["ja", "nein", "unklar", ""] * 10, Gruppe=["Lernen", "Halt"] * 20, Sex=["M", "F"] * 20)
    out = fedlit_cli(f"data check {write_table(tmp_path, columns)}").succeeded()
    assert "# not used: 'Lunge' (ja, nein, unklar); 'Gruppe' (Halt, Lernen). Is one of them a label" in out
    del columns["Edema"]
    code, out, err = fedlit_cli(f"data check {write_table(tmp_path, columns)}")
    assert code == 2
    assert "of few words are 'Lunge' (ja, nein, unklar); 'Gruppe'" in err
    given = "{labels: [Lunge], values: {ja: positive, nein: negative, unklar: blank}, split: Gruppe, "
    given += "splits: {Lernen: train, Halt: test}}"
    code, out, _ = fedlit_cli(f"data check {write_table(tmp_path, columns)} --set '{given}'")
    assert "not used" not in out


def test_an_unknown_finding_is_no_class(tmp_path, fedlit_cli):
    columns = people(Diagnosis=["Edema|Mass", "unknown", "Mass", "n/a"] * 10)
    given = {"image": "file", "patient": "patient", "findings": "Diagnosis"}
    reading = ImageTable(write_table(tmp_path, columns), **given).read()
    np.testing.assert_array_equal(reading.labels[:4], [[1, 1], [np.nan] * 2, [0, 1], [np.nan] * 2])
    explicit = ImageTable(tmp_path / "ours.csv", labels=["Edema", "Mass", "unknown"], **given).read()
    np.testing.assert_array_equal(explicit.labels[1], [0, 0, 1])


def test_one_problem_is_one(tmp_path, fedlit_cli):
    """A problem that the check finds itself is not repeated as an error of fit; sites can be merged."""
    code, out, _ = fedlit_cli(f"data check {write_table(tmp_path / 'a', people(split=['train', 'test'] * 20))}")
    assert code == 1
    assert out.count("problem:") == out.count("more than one official split") == 1
    code, out, _ = fedlit_cli(f"data check {write_table(tmp_path / 'b', people(site=['North'] * 20 + ['north'] * 20))}")
    assert code == 1
    assert "set data.sites to {north: North}" in out
    assert fedlit_cli(f"data check {tmp_path}/b/ours.csv --set '{{sites: {{north: North}}}}'")[0] == 0
