"""Spellings that differ from those on the disk are read, or the message names the difference."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from own_tables import data_check as check
from own_tables import people, picture, write_columns, write_table
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data import ImageTable


def written(root: Path, names: list[str]) -> Path:
    """A table in which the 40 images have these names, and their files plain ones."""
    return write_columns(write_table(root, people()), people(file=names))


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_forms_of_unicode(tmp_path, fedlit_cli, forms):
    names = [f"Röntgen {n}.png" for n in range(40)]
    table = written(tmp_path, [unicodedata.normalize(forms[0], name) for name in names])
    for n, name in enumerate(names):
        (tmp_path / f"{n}.png").rename(tmp_path / unicodedata.normalize(forms[1], name))
    code, out = check(fedlit_cli, str(table))
    assert code == 0, out
    assert "40, 0 of them missing" in out


def test_a_line_that_names_the_delimiter(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people())
    table.write_text("sep=;\n" + table.read_text().replace(",", ";"))
    code, out = check(fedlit_cli, str(table))
    assert code == 0, out
    assert "semicolons between cells" in out
    code, out = check(fedlit_cli, f"{table} --set '{{labels: [patient]}}'")
    assert "line 3: column 'patient'" in out


def test_a_row_cut_short_is_named_by_its_line(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(site=["north", "south"] * 20))
    lines = table.read_text().splitlines()
    lines[7] = "6.png,0,north"  # the patient's cell is lost
    table.write_text("\n".join(lines))
    code, out = check(fedlit_cli, str(table))
    assert code == 2
    assert "line 8: expected 4 cells as in the header, found 3" in out


@pytest.mark.parametrize(
    ("names", "word"),
    [
        ([rf"D:\scans\{n}.png" for n in range(40)], r"'file' holds paths of another machine, such as 'D:\\scans\\0"),
        ([f"elsewhere/{n}.png" for n in range(40)], "names of these files in other folders, such as 'elsewhere/0.png'"),
    ],
)  # fmt: skip
def test_why_no_column_names_the_images(tmp_path, fedlit_cli, names, word):
    code, out = check(fedlit_cli, str(written(tmp_path, names)))
    assert code == 2
    assert word in out


def test_lost_zeros(tmp_path, fedlit_cli):
    table = written(tmp_path, [str(n) for n in range(40)])
    for n in range(40):
        (tmp_path / f"{n}.png").rename(tmp_path / f"{n:05d}.png")
    code, out = check(fedlit_cli, str(table))
    assert code == 2
    assert "'file' has lost zeros: '1' is the file '00001.png'" in out


def test_a_sheet_before_the_data(tmp_path, fedlit_cli):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("openpyxl")
    write_table(tmp_path, people())
    with pd.ExcelWriter(tmp_path / "ours.xlsx") as book:
        pd.DataFrame({"about": ["our study", "2026"]}).to_excel(book, sheet_name="Readme", index=False)
        pd.DataFrame(people()).to_excel(book, sheet_name="Cases", index=False)
    code, out = check(fedlit_cli, str(tmp_path / "ours.xlsx"))
    assert code == 2
    assert "the sheet 'Readme' was read, and 'Cases' was not: --set '{sheet: Cases}'" in out
    code, out = check(fedlit_cli, f"{tmp_path}/ours.xlsx --set '{{sheet: Cases}}'")
    assert code == 0, out
    assert "sheet: Cases" in out
    code, out = check(fedlit_cli, f"{tmp_path}/ours.xlsx --set '{{sheet: Case}}'")
    assert code == 2
    assert "expected a sheet 'Case', found 'Readme', 'Cases'" in out


def test_sites_under_one_name(tmp_path):
    table = write_table(tmp_path, people(site=["North", "north ward", "South", "south"] * 10), {0: picture(99)})
    merged = {"north ward": "North", "south": "South"}
    given = {"image": "file", "patient": "patient", "site": "site", "labels": ["Edema"]}
    assert set(ImageTable(table, sites=merged, **given).read().sites) == {"North", "South"}
    with refused(DataError, "ours.csv", "'east'"):
        ImageTable(table, sites={"east": "South", "weat": "x"}, **given).read()


def test_a_table_and_its_images_in_the_working_directory(tmp_path, fedlit_cli, monkeypatch):
    write_table(tmp_path, people())
    monkeypatch.chdir(tmp_path)
    code, out = check(fedlit_cli, "ours.csv")
    assert code == 0, out


def read(table: Path, values: dict):
    return ImageTable(table, image="file", patient="patient", labels=["Edema", "Age"], values=values).read()


AGES = ["17", "18", "17,5", "64.9", "65", "", "Erwachsen", "1"]
RANGES = {">= 18 and < 65": "positive", "< 18": "negative", ">=65": "uncertain", "erwachsen": "positive"}


def test_values_of_one_column_and_ranges_of_numbers(tmp_path):
    """1 is a number in a column with ranges, and positive in another."""
    columns = people(8, Age=[f'"{age}"' for age in AGES], Edema=["ja", "1", "0", "nein"] * 2)
    table = write_table(tmp_path, columns)
    words = {"ja": "positive", "Edema": {"nein": "negative"}}
    labels = read(table, words | {"Age": RANGES}).labels
    np.testing.assert_array_equal(labels[:, 0], [1, 1, 0, 0] * 2)
    np.testing.assert_array_equal(labels[:, 1], [0, 1, 0, 1, -1, np.nan, 1, 0])
    with refused(DataError, "line 6", "column 'Age'", ">= 18 and < 65, < 18, > 65, erwachsen", "'65'"):
        read(table, words | {"Age": {{">=65": "> 65"}.get(key, key): value for key, value in RANGES.items()}})
    with refused(DataError, "line 6", "column 'Age'", "'65'", "Age: {65", "positive}}"):
        read(table, words | {"Age": RANGES | {"> 60": "positive"}})  # in two ranges of different meanings
    with refused(DataError, "line 5", "column 'Edema'", "'nein'"):
        read(table, {"ja": "positive", "Age": RANGES})


def test_an_empty_cell_of_one_column_may_mean_something(tmp_path):
    cells = ["x" if n % 3 else "" for n in range(40)]
    table = write_table(tmp_path, people(Mass=cells))
    values = {"Mass": {"x": "positive", "": "negative"}}
    data = ImageTable(table, image="file", patient="patient", labels=["Edema", "Mass"], values=values)
    assert data.read().labels[:, 1].tolist() == [float(cell == "x") for cell in cells]


def test_ranges_on_the_command_line(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(Age=[str(age) for age in range(1, 41)]))
    code, out = check(
        fedlit_cli, f"""{table} --set '{{labels: [Age], values: {{Age: {{">= 18": positive, "< 18": negative}}}}}}'"""
    )
    assert code == 0, out
    assert "Age - 23 17 0 0" in out
