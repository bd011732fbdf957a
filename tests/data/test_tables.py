"""Label files: what is wrong is said with file, line and column."""

import gzip

import numpy as np
import pytest

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


def test_numbers_in_text_columns_stay_as_written(tmp_path):
    assert table(tmp_path, "name,Mass,Edema\n007,1,1\n1e3,0,0\n").rows["name"].tolist() == ["007", "1e3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"labels.csv: expected a table with columns 'name', 'Mass', 'Edema', found nothing"),
        ("name,Mass,Edema\n\n", r"labels.csv: expected rows below the header, found none"),
        ("name,Mas,Edema\na,1,1\n", r"expected a column 'Mass', found 'name', 'Mas', 'Edema'; similar names are Mas"),
        (GOOD.replace("c.png", ""), r"labels.csv, line 5: column 'name' is empty \(1 such lines\)"),
        (GOOD.replace("c.png", " "), r"labels.csv, line 5: column 'name' is empty"),
        (GOOD.replace("c.png", "c,png"), r"labels.csv: expected a table of .*: .*Expected 3 fields in line 5, saw 4"),
        (GOOD.replace("c.png", '"c.png'), r"labels.csv: expected a table of comma-separated values"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        table(tmp_path, text)


@pytest.mark.parametrize("end", ["", ","])
@pytest.mark.parametrize("packed", [False, True])
def test_a_row_cut_short_is_refused_with_its_line(tmp_path, packed, end):
    path = tmp_path / ("labels.csv.gz" if packed else "labels.csv")
    text = GOOD.replace("\n", f"{end}\n")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert len(read_table(path, ["name"]).rows) == 3
    text = text.replace("a.png,1,0", '"a\nb.png",1,').replace("c.png,0.0,1.0", "c.png,0.0").replace(f"0.0{end}", "0.0")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with pytest.raises(ValueError, match=r"labels.csv.*, line 5: expected 3 cells as in the header, found 2"):
        read_table(path, ["name"])


def test_another_encoding_is_refused_with_the_file(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_bytes("name\nFrançois.png\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"labels.csv: expected UTF-8, found the byte 0xe7"):
        read_table(path, ("name",))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"labels.csv: no such file"):
        read_table(tmp_path / "labels.csv", ("name",))


@pytest.mark.parametrize("cell", ["2", "0.5", "yes", " "])
def test_other_values_are_refused_with_their_line(tmp_path, cell):
    read = table(tmp_path, GOOD.replace("c.png,0.0", f"c.png,{cell}"))
    message = rf"labels.csv, line 5: column 'Mass': expected 1, 0, -1 or nothing, found '{cell}(\.0)?' \(1 such cells\)"
    with pytest.raises(ValueError, match=message):
        numbers(read, ("Edema", "Mass"), (1, 0, -1))


def test_repeated_values_are_refused_with_both_lines(tmp_path):
    read = table(tmp_path, GOOD.replace("c.png", "a.png"))
    with pytest.raises(ValueError, match=r"labels.csv: image 'a.png' is on lines 2, 5. Keep one of them"):
        refuse_repeats(read, "name")
    refuse_repeats(table(tmp_path, GOOD), "name")
