"""What spreadsheets and exports do to a table: read as it was meant, or refused where two readings fit."""

from pathlib import Path

import numpy as np
import pytest
from own_tables import people, picture, write_columns
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data import ImageTable
from fedlit.data.labels import UNCERTAIN
from fedlit.data.own.cells import joined_labels
from fedlit.data.own.proposal import propose
from fedlit.data.tables import is_numeric, read_any_table


def reading(table: Path, **options):
    given = {"image": "file", "patient": "patient", "labels": ["Edema"], "image_size": 16, "root": table.parent}
    return ImageTable(table, **(given | options)).read()


def of_doses(tmp_path, cells):
    columns = people(8, dose=[f'"{cells[n % len(cells)]}"' for n in range(8)])
    values = {"dose": {">= 300": "positive", "< 300": "negative"}}
    return reading(write_columns(tmp_path / "ours.csv", columns), labels=["dose"], values=values).labels[:, 0]


def test_a_comma_that_may_be_a_point_is_refused_and_one_that_can_only_be_a_point_is(tmp_path):
    for cells in (["1,234", "450"], ["-2,450", "12,000,000"], ["310", "1,020"]):
        with refused(DataError, "ours.csv, line", "'dose'", " or "):
            of_doses(tmp_path, cells)
        assert is_numeric(cells) == ""
    for cells, labels in ((["1,5", "450"], [0, 1]), (["0,234", "1,234"], [0, 0]), (["301,25", "1,000"], [1, 0])):
        np.testing.assert_array_equal(of_doses(tmp_path, cells), labels * 4)


def test_signs_by_which_excel_marks_text_are_no_part_of_an_id(tmp_path):
    columns = people(8, patient=["0017", "'0017", '"=""0017"""', "'0017 ", "0018", "'0018", "0018", "'0018"])
    assert reading(write_columns(tmp_path / "ours.csv", columns)).patients.tolist() == ["0017"] * 4 + ["0018"] * 4


def test_a_header_may_look_like_cells(tmp_path):
    """Names of classes are cells of a column of words, and numbers."""
    for header in ("file,Edema,Mass", "file,0,1", "file,Mass,normal"):
        (tmp_path / "ours.csv").write_text(f"{header}\nIM0,Edema,0\nIM1,,1\nIM2,Mass,normal\n")
        assert list(read_any_table(tmp_path / "ours.csv")[0].rows) == header.split(",")


@pytest.mark.parametrize(
    ("lists", "classes"),
    [
        (["['Edema', 'Mass']", "['normal']", "['Mass']"], ["Edema", "Mass"]),
        (['["Edema", "Pleural effusion, left"]', "[]", '["Edema"]'], ["Edema", "Pleural effusion, left"]),
        (["['Edema' 'Mass']", "['Mass']", "['Edema']"], ["Edema", "Mass"]),
        (["{'Edema'}", "('Mass',)", "[Edema, Mass]"], ["Edema", "Mass"]),
    ],
)
def test_lists_as_python_and_json_write_them(tmp_path, lists, classes):
    columns = people(12, Findings=['"' + lists[n % 3].replace('"', '""') + '"' for n in range(12)])
    del columns["Edema"]
    table = write_columns(tmp_path / "ours.csv", columns)
    for n in range(12):
        picture(n).save(tmp_path / f"{n}.png")
    proposed = propose(table).arguments
    data = ImageTable(**proposed, image_size=16)
    assert list(data.labels) == classes
    named = [[name in row for name in classes] for row in lists]
    found = data.read().labels[:3]
    np.testing.assert_array_equal(found[~np.isnan(found[:, 0])], np.array(named)[~np.isnan(found[:, 0])])


FOREIGN = [
    ("gb18030", "北京协和医院", "gb"), ("shift_jis", "東京大学病院", ""), ("cp1251", "Городская больница", ""),
    ("euc_kr", "서울대학교병원", ""), ("cp1253", "Ευαγγελισμός", ""),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "hospital", "guess"), FOREIGN)
def test_another_encoding_is_read_by_name_and_never_as_garbage(tmp_path, encoding, hospital, guess):
    columns = people(12, clinic=[hospital] * 12)
    table = write_columns(tmp_path / "ours.csv", columns)
    table.write_bytes(table.read_text(encoding="utf-8").encode(encoding))
    with refused(DataError, "ours.csv", "data.encoding", guess):
        reading(table, site="clinic")
    assert set(reading(table, site="clinic", encoding=encoding).sites) == {hospital}


def test_single_letters_of_western_europe_need_no_name(tmp_path):
    for hospital in ("Klinikum Münster", "Hôpital Bégin", "Sjúkrahús Ísafjörður", "São João 5 µSv"):
        table = write_columns(tmp_path / "ours.csv", people(4, clinic=[hospital] * 4))
        table.write_bytes(table.read_text(encoding="utf-8").encode("cp1252"))
        assert set(reading(table, site="clinic").sites) == {hospital}


@pytest.mark.parametrize(
    ("rule", "expected"), [("any", [[1, UNCERTAIN], [0, np.nan]]), ("vote", [[0, UNCERTAIN], [0, np.nan]])]
)
def test_rows_of_one_image_are_joined(rule, expected):
    labels = np.array([[1, UNCERTAIN], [0, np.nan], [0, 0], [0, np.nan]], dtype=np.float32)
    np.testing.assert_array_equal(joined_labels(labels, np.array([0, 0, 0, 1]), rule), expected)


def test_a_row_for_each_box_or_reader(tmp_path):
    columns = {"file": ["0.png", "1.png", "0.png", "0.png"], "patient": ["a", "b", "a", "a"], "Edema": list("1000")}
    table = write_columns(tmp_path / "ours.csv", columns)
    with refused(DataError, "'0.png'", "data.rows"):
        reading(table)
    boxes, votes = reading(table, rows="any"), reading(table, rows="vote")
    assert boxes.names.tolist() == votes.names.tolist() == ["0.png", "1.png"]
    assert (boxes.labels[:, 0].tolist(), votes.labels[:, 0].tolist()) == ([1, 0], [0, 0])
    assert boxes.patients.tolist() == ["a", "b"]
    assert "4 rows are of 2 images of ours: a label is positive if one of them is" in boxes.notes
    columns["patient"][2] = "c"
    with refused(DataError, "line 4", "patient", "'c'"):
        reading(write_columns(tmp_path / "ours.csv", columns), rows="any")
