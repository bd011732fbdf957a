"""Label files: what is wrong is said with file, line and column."""

import gzip

import numpy as np
import pytest
from refusals import refused

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.tables import numbers, read_table, refuse_repeats

GOOD = "name,Mass,Edema\na.png,1,0\nb.png,,-1\n\nc.png,0.0,1.0\n"


def table(tmp_path, text: str, needed=("name", "Mass", "Edema"), filled=("name",), **kwargs):
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode())
    return read_table(path, needed, filled, **kwargs)


def test_rows_keep_the_lines_that_they_stand_on(tmp_path):
    read = table(tmp_path, GOOD)
    assert read.rows["name"].tolist() == ["a.png", "b.png", "c.png"]
    assert read.lines.tolist() == [2, 3, 5]
    assert read.at(np.array([False, False, True])) == f"{tmp_path / 'labels.csv'}, line 5"
    assert read.where(np.array([False, True, True])).lines.tolist() == [3, 5]
    values = numbers(read, ("Edema", "Mass"), (1, 0, -1))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, [[0, 1], [-1, np.nan], [1, 0]])


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", ",\n"),
        GOOD.replace("png,", "png ,").replace("name,Mass", "name , Mass"),
        GOOD.replace("0\nb", "0,\nb"),
    ],
    ids=["byte order mark", "line ends of Windows", "commas at the ends", "blanks", "a comma at one end"],
)
def test_spellings_of_the_same_table(tmp_path, text):
    read = table(tmp_path, text)
    assert read.rows.columns.tolist() == ["name", "Mass", "Edema"]
    assert read.rows["name"].tolist() == ["a.png", "b.png", "c.png"]
    np.testing.assert_array_equal(numbers(read, ("Mass",), (0, 1))[:, 0], [1, np.nan, 0])


def test_compressed_tables_and_other_names_of_columns(tmp_path):
    path = tmp_path / "labels.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    read = read_table(path, ("image",), ("image",), {"name": "image"})
    assert read.rows["image"].tolist() == ["a.png", "b.png", "c.png"]
    assert table(tmp_path, "name,Mass,Edema\n007,1,1\n1e3,0,0\n").rows["name"].tolist() == ["007", "1e3"]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", (DataError, "labels.csv", "nothing")),
        ("name,Mass,Edema\n\n", (DataError, "labels.csv")),
        ("name,Mas,Edema\na,1,1\n", (DataError, "'Mass'", "'name', 'Mas', 'Edema'")),
        (GOOD.replace("c.png", ""), (DataError, "labels.csv, line 5", "column 'name'", "1 such lines")),
        (GOOD.replace("c.png", "c,png"), (DataError, "labels.csv, line 5", "expected 3", "found 4")),
        (GOOD.replace("c.png", '"c.png'), (DataError, "labels.csv, line 5", "quote")),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, text, mistake):
    with refused(*mistake):
        table(tmp_path, text)


@pytest.mark.parametrize(("end", "packed"), [("", False), (",", False), (",", True)])
def test_a_row_cut_short_is_refused_with_its_line(tmp_path, packed, end):
    path = tmp_path / ("labels.csv.gz" if packed else "labels.csv")
    text = GOOD.replace("\n", f"{end}\n")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert len(read_table(path, ["name"]).rows) == 3
    text = text.replace("a.png,1,0", '"a\nb.png",1,').replace("c.png,0.0,1.0", "c.png,0.0").replace(f"0.0{end}", "0.0")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with refused(DataError, "labels.csv", "line 6", "found 2"):  # a cell has a line break
        read_table(path, ["name"])


@pytest.mark.parametrize(("encoding", "delimiter"), [("utf-16", "\t"), ("cp1252", ";")])
def test_public_tables_that_a_spreadsheet_has_saved_are_read(tmp_path, encoding, delimiter):
    path = tmp_path / "labels.csv"
    path.write_bytes(GOOD.replace("a.png", "François.png").replace(",", delimiter).encode(encoding))
    assert read_table(path, ("name", "Mass")).rows["name"].tolist() == ["François.png", "b.png", "c.png"]


def test_words_for_missing_values_are_blank(tmp_path):
    for word in ("", " ", "NA", "nan", "NULL"):
        read = table(tmp_path, GOOD.replace("c.png,0.0", f"c.png,{word}"))
        np.testing.assert_array_equal(numbers(read, ("Mass",), (0, 1))[:, 0], [1, np.nan, np.nan])


def test_a_unicode_separator_in_a_cell_ends_no_line(tmp_path):
    read = table(tmp_path, GOOD.replace("a.png", "a\u2028\x0cb.png"))
    assert (read.rows["name"][0], read.lines.tolist()) == ("a\u2028\x0cb.png", [2, 3, 5])


def test_other_values_are_refused_with_their_line(tmp_path):
    for cell in ("2", "0.5", "yes"):
        read = table(tmp_path, GOOD.replace("c.png,0.0", f"c.png,{cell}"))
        with refused(DataError, "labels.csv, line 5: column 'Mass'", f"found '{cell}"):
            numbers(read, ("Edema", "Mass"), (1, 0, -1))


def test_repeated_values_are_refused_with_both_lines(tmp_path):
    read = table(tmp_path, GOOD.replace("c.png", "a.png"))
    with refused(DataError, "labels.csv", "image 'a.png'", "line", "2, 5"):
        refuse_repeats(read, "name")
    refuse_repeats(table(tmp_path, GOOD), "name")
    with refused(MissingFileError, "absent.csv"):
        read_table(tmp_path / "absent.csv", ("name",))
