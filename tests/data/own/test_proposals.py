"""The proposed meaning of a table's columns: unknown words are named, and `data check` prints what fit would do."""

from pathlib import Path

import numpy as np
import pytest
from own_tables import examined, people, write_columns, write_table
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.data import ImageTable
from fedlit.data.own.proposal import FRONTAL, Proposal, propose


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """The folder of the 40 images that all tables of ``people`` name."""
    return write_table(tmp_path_factory.mktemp("images"), people()).parent


def proposed(folder: Path, images: Path, columns: dict[str, list[str]]) -> Proposal:
    return propose(write_columns(folder / "ours.csv", columns), images)


def test_numbers_and_notes_are_no_labels(tmp_path, images):
    columns = people(
        lesions=[str(n % 4) for n in range(40)], Sex=["01"[n // 4 % 2] for n in range(40)],
        patient_age=["01"[n // 6 % 2] for n in range(40)], Portable=["ny"[n // 8 % 2] for n in range(40)],
    )  # fmt: skip
    found = proposed(tmp_path, images, columns)
    assert found.arguments["labels"] == ["Edema"]
    said = "left out, because their names are not findings: 'Sex', 'patient_age', 'Portable'"
    assert found.reasons["labels"] == said
    given = {"labels": ["Edema", "Portable"]}
    assert propose(tmp_path / "ours.csv", images, given).arguments["labels"] == given["labels"]


def test_columns_of_patients_are_found_by_more_names(tmp_path, images):
    for name in ("PatID", "Fallnummer", "pat_nr", "Pat.-Nr.", "PID"):
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
NOBODY = "each image is then a patient of its own"


@pytest.mark.parametrize("kind", IDS)
def test_ids_that_repeat_are_asked_about_and_ages_sizes_and_dates_are_not(tmp_path, images, kind):
    columns = people(xyz=list(map(str, IDS[kind])), **QUANTITIES)
    del columns["patient"]
    reason = proposed(tmp_path, images, columns).reasons["patient"]
    assert reason.endswith(f"{NOBODY}. Is it 'xyz' (20 different)?")


def test_quantities_and_dates_that_repeat_are_not_asked_about(tmp_path, images):
    for name, cells in (
        ("abc", PATIENTS * 3 + 20),  # such as ages
        ("abc", PATIENTS + 1950),
        ("abc", [f"{n + 20:03}Y" for n in PATIENTS]),
        ("abc", [f"{n + 1:02}.01.2020" for n in PATIENTS]),
        ("abc", [f"{n + 60}.5" for n in PATIENTS]),
        ("abc", [""] * 40),
        ("OriginalImage[Width", PATIENTS * 9 + 2000),
        ("Height]", PATIENTS * 9 + 2000),
        ("Follow-up #", PATIENTS),
    ):
        columns = people(**{name: list(map(str, cells))})
        del columns["patient"]
        assert proposed(tmp_path, images, columns).reasons["patient"].endswith(NOBODY)


def test_views_from_the_front():
    front = ("PA", "AP", "AP erect", "ap_supine", "AP semi-erect", "Portable AP", "Posteroanterior")
    assert all(map(FRONTAL.fullmatch, front))
    assert not any(map(FRONTAL.fullmatch, ("L", "LL", "Lateral", "LATERAL erect", "RPO", "", "map", "pal")))


@pytest.mark.parametrize(
    ("names", "pattern"),
    [(["frontal.png"], "{study}/frontal.png"), (["frontal.png", "lateral.png"], "{study}/frontal.png"),
     ([], "{study}/*")],
)  # fmt: skip
def test_a_folder_per_examination(tmp_path, names, pattern):
    columns = {"study": [f"S{n}" for n in range(40)]} | people()
    for name in names or [""]:
        of = {"file": [f"S{n}/{name or f'{n * 7919 % 1009}.png'}" for n in range(40)]}
        write_table(tmp_path / "images", of)
        for n in range(40) if name == "lateral.png" else ():
            (tmp_path / "images" / f"S{n}" / name).write_bytes((tmp_path / f"images/S{n}/frontal.png").read_bytes())
    del columns["file"]
    table = write_columns(tmp_path / "images" / "studies.csv", columns)
    proposal, found = examined(table)
    assert (proposal.arguments["image"], found.problems) == (pattern, [])
    assert proposal.reasons["image"].startswith("40 of 40 rows")
    if not names:
        (tmp_path / "images" / "S3" / "more.png").write_bytes(b"x")
        (problem,) = examined(table, image="{study}/*")[1].problems
        assert problem.text.startswith("1 of 40 images are missing")


def test_words_that_are_not_known_are_named(tmp_path):
    """Cells of a label with their lines, a row of totals, columns of few words, and findings that are unknown."""
    cells = [str(n % 3 // 2) for n in range(40)]
    cells[7], cells[9], cells[30] = "u", "u", "o"
    table = write_table(tmp_path, people(Mass=cells))
    proposal, found = examined(table)
    assert proposal.arguments["labels"] == ["Edema", "Mass"]
    for words in ("line 9: column 'Mass': expected a label", "'u' (lines 9, 11), 'o' (line 32)"):
        assert words in found.problems[0].text
    write_columns(table, people()).write_text(table.read_text() + "Summe,,20\n")
    said = "line 42: expected an image, found a row of totals ('Summe'); remove it"
    assert said in examined(table)[1].problems[0].text
    few = {"Lunge": ["ja", "nein", "unklar", ""] * 10, "Gruppe": ["Lernen", "Halt"] * 20}
    columns = people(**few, Sex=["M", "F"] * 20)
    reason = propose(write_columns(table, columns)).reasons["unused"]
    assert reason.startswith("not used: 'Lunge' (ja, nein, unklar); 'Gruppe' (Halt, Lernen). Is one of them a label")
    del columns["Edema"]
    with refused(ConfigError, "of few words are 'Lunge' (ja, nein, unklar); 'Gruppe'"):
        propose(write_columns(table, columns))
    given = {"labels": ["Lunge"], "values": {"ja": "positive", "nein": "negative", "unklar": "blank"}}
    given |= {"split": "Gruppe", "splits": {"Lernen": "train", "Halt": "test"}}
    assert "unused" not in propose(table, known=given).reasons
    write_columns(table, people(Diagnosis=["Edema|Mass", "unknown", "Mass", "n/a"] * 10))
    given = {"image": "file", "patient": "patient", "findings": "Diagnosis"}
    np.testing.assert_array_equal(ImageTable(table, **given).read().labels[:3], [[1, 1], [np.nan] * 2, [0, 1]])
    explicit = ImageTable(table, labels=["Edema", "Mass", "unknown"], **given).read()
    np.testing.assert_array_equal(explicit.labels[1], [0, 0, 1])


def test_positives_by_client_class_and_split_are_shown(tmp_path, fedlit_cli):
    splits = np.repeat(["train", "val", "test"], [24, 8, 8])
    ill = ["0"] * 24 + ["1"] * 8 + ["0"] * 8
    columns = people(site=np.tile(["north", "north", "south", "south"], 10), split=splits, Mass=ill)
    out = " ".join(fedlit_cli(f"data check {write_table(tmp_path, columns)}").succeeded().split()).replace("│", "")
    for word in (
        "training / validation / test, as fit divides them",
        "positives north south",
        "images 12 / 4 / 4 12 / 4 / 4",
        "Edema 0 / 0 / 0",
        "Mass 0 / 4 / 0 0 / 4 / 0",
        "no image of train is positive for Mass",
        "no image of test is positive for Mass",
    ):
        assert word in out


def test_what_fit_would_refuse_or_miss_is_said_once(tmp_path):
    table = write_table(tmp_path, people(split=np.repeat(["train", "test"], [30, 10])))
    found = examined(table)[1]
    assert found.problems == []
    assert any("for validation" in each and "splits: {train: train_val}" in each for each in found.remarks)
    write_columns(table, people(split=["train", "test"] * 20))
    (problem,) = examined(table)[1].problems
    assert "more than one official split" in problem.text
    write_columns(table, people(site=["North"] * 20 + ["north"] * 20))
    (problem,) = examined(table)[1].problems
    assert "set data.sites to {north: North}" in problem.text
    assert examined(table, sites={"north": "North"})[1].problems == []
    write_columns(table, people(24, clinic=["north"] * 12 + ["south"] * 12, view=["PA"] * 12 + ["LL"] * 12))
    (problem,) = examined(table)[1].problems
    assert problem.text.startswith("no image of 'south' is left")
