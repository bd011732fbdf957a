"""Spellings that differ from those on the disk are read or named, and images that are held out stay out."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from own_tables import examined, opened, people, picture, write_columns, write_table
from refusals import refused

from fedlit.core.errors import ConfigError, DataError
from fedlit.data import ImageTable
from fedlit.data.own.proposal import propose

HELD_OUT = ["train"] * 24 + ["holdout"] * 16


def written(root: Path, names: list[str]) -> Path:
    """A table in which the 40 images have these names, and their files plain ones."""
    return write_columns(write_table(root, people()), people(file=names))


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_forms_of_unicode(tmp_path, forms):
    names = [f"Röntgen {n}.png" for n in range(40)]
    table = written(tmp_path, [unicodedata.normalize(forms[0], name) for name in names])
    for n, name in enumerate(names):
        (tmp_path / f"{n}.png").rename(tmp_path / unicodedata.normalize(forms[1], name))
    _, found = examined(table)
    assert found.problems == []
    assert None not in found.pictures


def test_a_line_that_names_the_delimiter(tmp_path):
    table = write_table(tmp_path, people())
    table.write_text("sep=;\n" + table.read_text().replace(",", ";"))
    proposal, found = examined(table)
    assert found.problems == []
    assert "semicolons between cells" in proposal.written
    with refused(DataError, "line 3", "column 'patient'"):
        opened(table, labels=["patient"]).read()


@pytest.mark.parametrize(
    ("names", "word"),
    [
        ([rf"D:\scans\{n}.png" for n in range(40)], r"'file' holds paths of another machine, such as 'D:\\scans\\0"),
        ([f"elsewhere/{n}.png" for n in range(40)], "names of these files in other folders, such as 'elsewhere/0.png'"),
    ],
)  # fmt: skip
def test_why_no_column_names_the_images(tmp_path, names, word):
    with refused(ConfigError, word):
        propose(written(tmp_path, names))


def test_lost_zeros(tmp_path):
    table = written(tmp_path, [str(n) for n in range(40)])
    for n in range(40):
        (tmp_path / f"{n}.png").rename(tmp_path / f"{n:05d}.png")
    with refused(ConfigError, "'file' has lost zeros: '1' is the file '00001.png'"):
        propose(table)


def test_a_sheet_before_the_data(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("openpyxl")
    write_table(tmp_path, people())
    with pd.ExcelWriter(tmp_path / "ours.xlsx") as book:
        pd.DataFrame({"about": ["our study", "2026"]}).to_excel(book, sheet_name="Readme", index=False)
        pd.DataFrame(people()).to_excel(book, sheet_name="Cases", index=False)
    with refused(ConfigError, "the sheet 'Readme' was read, and 'Cases' was not: --set '{sheet: Cases}'"):
        propose(tmp_path / "ours.xlsx")
    proposal, found = examined(tmp_path / "ours.xlsx", sheet="Cases")
    assert (found.problems, proposal.arguments["sheet"]) == ([], "Cases")
    with refused(DataError, "'Case'", "'Readme', 'Cases'"):
        propose(tmp_path / "ours.xlsx", known={"sheet": "Case"})


def test_sites_under_one_name(tmp_path):
    table = write_table(tmp_path, people(site=["North", "north ward", "South", "south"] * 10), {0: picture(99)})
    merged = {"north ward": "North", "south": "South"}
    given = {"image": "file", "patient": "patient", "site": "site", "labels": ["Edema"]}
    assert set(ImageTable(table, sites=merged, **given).read().sites) == {"North", "South"}
    with refused(DataError, "ours.csv", "'east'"):
        ImageTable(table, sites={"east": "South", "weat": "x"}, **given).read()


def test_a_table_and_its_images_in_the_working_directory(tmp_path, monkeypatch):
    write_table(tmp_path, people())
    monkeypatch.chdir(tmp_path)
    assert examined(Path("ours.csv"))[1].problems == []


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
    cells = ["x" if n % 3 else "" for n in range(8)]
    table = write_table(tmp_path, people(8, Age=cells))
    labels = read(table, {"Age": {"x": "positive", "": "negative"}}).labels[:, 1]
    assert labels.tolist() == [float(cell == "x") for cell in cells]


# Images that are held out


def test_a_word_of_a_split_that_is_not_known_is_refused_unless_it_means_something(tmp_path):
    table = write_table(tmp_path, people(split=HELD_OUT))
    proposal, found = examined(table)
    assert proposal.arguments["split"] == "split"
    (problem,) = found.problems
    for word in ("line 26: column 'split'", "'holdout' (16 such lines)", "data.splits {holdout: test}"):
        assert word in problem.text
    assert examined(table, splits={"HoldOut": "test"})[1].problems == []
    assert examined(table, split=None)[1].problems == []
    data = opened(table, split="split", splits={"HoldOut": "test", "train": "train_val"})
    data.setup()
    held = data.assignment.query("split == 'test'")
    assert sorted(held["image"]) == sorted(f"{n}.png" for n in range(24, 40))
    text = table.read_text()
    for name in ("Fold", "data_set", "Partition", "subset", "cv_fold", "train_test_split"):
        table.write_text(text.replace("Edema,split", f"Edema,{name}"))
        assert propose(table).arguments["split"] == name
    table.write_text(text.replace(",train\n", ",\n"))
    assert len(examined(table)[1].problems) == 1
    data = opened(table, split="split", splits={"": "train_val", "holdout": "test"})
    assert data.read().splits.tolist() == ["train_val"] * 24 + ["test"] * 16


def test_words_for_numbers_of_a_split_take_no_label_for_one(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(cv_fold=[str(n // 2 % 4) for n in range(40)]))
    assert propose(table).reasons["split"] == "4 different"
    words = "{splits: {0: test, 1: val, 2: train, 3: train}}"
    out = fedlit_cli(f"data check {table} --set '{words}'").succeeded()
    assert "split: cv_fold" in out
    assert "labels: [Edema]" in out
    assert "split" not in propose(write_table(tmp_path, people(set=[f"box {n}" for n in range(40)]))).arguments


@pytest.mark.parametrize("ids", [["p12", "p13", "14.png"], ["24.png", "25", "p13", "28.png", "29.png"]])
def test_a_list_of_ids_is_the_test_set(tmp_path, ids):
    table = write_table(tmp_path, people())
    (tmp_path / "test.txt").write_text("\n".join([*ids, ""]))
    data = opened(table, test=tmp_path / "test.txt")
    if "14.png" in ids:  # one image of a patient, whose other one would be trained on
        with refused(DataError, "'p7'", "and train_val"):
            data.setup()
        return
    data.setup()
    held = data.assignment.query("split == 'test'")
    assert sorted(held["image"]) == sorted(f"{n}.png" for n in (24, 25, 26, 27, 28, 29))
    assert set(np.unique(data.assignment["split"])) == {"train", "val", "test"}


def test_a_list_comes_before_a_column(tmp_path):
    table = write_table(tmp_path, people(split=["train"] * 20 + ["val"] * 10 + ["test"] * 10))
    (tmp_path / "test.txt").write_text("p1\n")
    data = opened(table, split="split", test=tmp_path / "test.txt")
    data.setup()
    assert (data.assignment["split"] == "test").sum() == 12
    assert "2 images of ours are test by test.txt, and another split by 'split'" in data.notes
