"""Custom images, described by a table, a folder and arguments: reading and errors."""

import gzip
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from own_tables import encoded
from PIL import Image
from refusals import raising, refused

from fedlit.core.errors import ConfigError, DataError
from fedlit.data import ByColumn, ImageTable
from fedlit.data.own.proposal import propose
from fedlit.data.tables import read_any_table, typed

HEADER = "file,pid,clinic,part,Edema,Mass,dose"
ROWS = [
    (f"{n}.png", f"p{n // 2}", "north" if n < 12 else "south", ("train", "val", "test")[n // 2 % 3],
     ("1", "0", "-1", "")[n % 4], "yes" if n % 3 else "no", f"{n}.5")
    for n in range(24)
]  # fmt: skip


def write(
    root: Path,
    rows=ROWS,
    header: str = HEADER,
    delimiter: str = ",",
    name: str = "ours.csv",
    encoding="utf-8",
    pictures: bool = True,
) -> Path:
    if pictures:
        (root / "images").mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(rows):
            (root / "images" / row[0]).write_bytes(encoded(number, 16))
    lines = [header.replace(",", delimiter), *(delimiter.join(row) for row in rows)]
    (root / name).write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return root / name


ARGUMENTS = {"image": "file", "patient": "pid", "site": "clinic", "split": "part", "labels": ["Edema", "Mass"]}


def opened(table: Path, **options) -> ImageTable:
    given = ARGUMENTS | {"root": table.parent / "images", "image_size": 8, "cache_dir": str(table.parent / "cache")}
    return ImageTable(table, **{key: value for key, value in (given | options).items() if value is not ...})


def test_what_the_table_says_is_what_is_trained_on(tmp_path):
    data = opened(write(tmp_path))
    records = data.records()
    assert data.classes == ("Edema", "Mass")
    assert records.names[:2].tolist() == ["0.png", "1.png"]
    nan = np.nan
    np.testing.assert_array_equal(records.labels[:4], [[1, 0], [0, 1], [nan, 1], [nan, 0]])
    assert records.sites.tolist() == ["north"] * 12 + ["south"] * 12
    assert records.patients[:3].tolist() == ["p0", "p0", "p1"]
    assert records.splits[:6].tolist() == ["train", "train", "val", "val", "test", "test"]
    assert records.table["dose"].tolist() == [n + 0.5 for n in range(24)]
    image = Image.open(tmp_path / "images" / "5.png").resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(records.store[5].numpy()[0], np.asarray(image))
    data.setup()
    assert list(data.clients) == ["north", "south"]
    counted = data.counts().groupby("class")[["positives", "negatives"]].sum()
    assert counted.loc["Mass"].tolist() == [sum(row[5] == word for row in ROWS) for word in ("yes", "no")]
    assert counted.loc["Edema"].tolist() == [sum(row[4] == word for row in ROWS) for word in ("1", "0")]
    assert data.notes == [
        "ours.csv: commas between cells, UTF-8",
        "6 of 48 labels of ours are uncertain: ignore (data.uncertain)",
        "6 of 48 labels of ours are blank: ignore (data.blank)",
    ]


@pytest.mark.parametrize(
    ("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "cp1252"), ("|", "utf-16")]
)
def test_however_it_is_written(two_tables, tmp_path, delimiter, encoding):
    rows = [
        (*row[:2], "Zürich" if row[2] == "north" else "Genève", *row[3:6], row[6].replace(".", ",")) for row in ROWS
    ]
    if delimiter == ",":
        rows = [(*row[:6], f'"{row[6]}"') for row in rows]
    table = write(tmp_path, rows, delimiter=delimiter, encoding=encoding, pictures=False)
    data = opened(table, root=two_tables / "images", cache_dir=str(two_tables / "cache"))
    records = data.records()
    assert sorted(set(records.sites)) == ["Genève", "Zürich"]
    assert records.table["dose"].iloc[[0, 5]].tolist() == [0.5, 5.5]
    called = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}[delimiter]
    name = {"utf-8-sig": "UTF-8", "utf-8": "UTF-8", "utf-16": "UTF-16"}.get(encoding, "Windows-1252")
    assert data.notes[0] == f"ours.csv: {called} between cells, {name}, decimal commas"


def test_tables_that_are_no_text(tmp_path):
    table = write(tmp_path)
    expected = opened(table).records()
    frame = pd.read_csv(table)
    frame.to_parquet(tmp_path / "ours.parquet")
    (tmp_path / "ours.csv.gz").write_bytes(gzip.compress(table.read_bytes()))
    for name in ("ours.parquet", "ours.csv.gz"):
        found = opened(tmp_path / name).records()
        np.testing.assert_array_equal(found.labels, expected.labels)
        pd.testing.assert_frame_equal(found.table, expected.table)
    bad = tmp_path / "bad.parquet"
    frame.assign(pid=["", *frame["pid"][1:]]).to_parquet(bad)
    with refused(DataError, "bad.parquet, row 1", "column 'pid'", "1 such lines"):
        opened(bad).read()


def test_a_spreadsheet(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl", reason="needs openpyxl, with which pandas reads spreadsheets")
    table = write(tmp_path)
    pd.read_csv(table).to_excel(tmp_path / "ours.xlsx", index=False)
    data = opened(tmp_path / "ours.xlsx")
    np.testing.assert_array_equal(data.records().labels, opened(table).records().labels)
    assert data.notes[0] == "ours.xlsx: a spreadsheet, 'Sheet1'"
    with refused(DataError, "ours.xlsx, line 2", "column 'dose'", "a label", "'0.5'"):
        opened(tmp_path / "ours.xlsx", labels=["dose"]).read()
    (tmp_path / "x.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    monkeypatch.setattr(pd, "read_excel", raising(ImportError("xlrd")))
    with refused(ConfigError, "x.xls", "xlrd"):
        read_any_table(tmp_path / "x.xls")


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1,5", "2", ""], [1.5, 2, None]),
        (["1.5", "2e3", "0"], None),
        (["1.5", "2.25", "0"], [1.5, 2.25, 0]),
        (["007", "1", "2"], None),
        (["1.5", "1,5", "1"], None),
        (["12345678901234567890", "1", "2"], None),
    ],
)  # fmt: skip
def test_columns_of_numbers(cells, numbers):
    column = typed(pd.DataFrame({"a": cells}, dtype=object))["a"]
    if numbers is None:
        assert column.tolist() == cells
    else:
        np.testing.assert_array_equal(column.to_numpy(dtype=float), np.array(numbers, dtype=float))


def seen(data: ImageTable) -> dict:
    records = data.records()
    return {
        "labels": records.labels.tobytes(), "names": records.names.tolist(), "sites": records.sites.tolist(),
        "patients": records.patients.tolist(), "splits": None if records.splits is None else records.splits.tolist(),
        "classes": data.classes, "channels": records.store.shape[1], "partition": type(data.partition).__name__,
    }  # fmt: skip


@cache
def usual(table: Path, *options: tuple) -> dict:
    """What is seen with the arguments of all tests, and these."""
    return seen(opened(table, **dict(options)))


OPTIONS = [
    ("table", {"table": "other.csv"}, "labels"),
    ("image", {"image": "{clinic}-{file}"}, "names"),
    ("patient", {"patient": ...}, "patients"),
    ("site", {"site": ...}, "partition"),
    ("split", {"split": ...}, "splits"),
    ("labels", {"labels": ["Mass"]}, "classes"),
    ("findings", {"labels": ..., "findings": "list"}, "classes"),
    ("separator", {"labels": ..., "findings": "list", "separator": "+"}, "classes"),
    ("values", {"values": {"yes": "uncertain"}}, "labels"),
    ("uncertain", {"uncertain": "ones"}, "labels"),
    ("blank", {"blank": {"Edema": "ones", "default": "ignore"}}, "labels"),
    ("views", {"views": {"clinic": ["north"]}}, "names"),
    ("names", {"names": {"Water": "Edema", "Mass": "Mass"}}, "classes"),
    ("classes", {"classes": ["Mass", "Edema"]}, "classes"),
    ("colour", {"colour": True}, "channels"),
    ("official_split", {"official_split": False}, "splits"),
    ("partition", {"partition": ByColumn("clinic")}, "partition"),
]


@pytest.fixture(scope="module")
def two_tables(tmp_path_factory) -> Path:
    """A folder with two tables of the same images, which also have names that begin with their clinic."""
    root = tmp_path_factory.mktemp("tables")
    rows = [(*row, "Edema|Mass" if n % 2 else "Hernia+x") for n, row in enumerate(ROWS)]
    write(root, rows, HEADER + ",list")
    other = [(*row[:4], "1", *row[5:]) for row in rows]
    write(root, other, HEADER + ",list", name="other.csv", pictures=False)
    for row in rows:
        shutil.copy(root / "images" / row[0], root / "images" / f"{row[2]}-{row[0]}")
    return root


@pytest.mark.parametrize(("option", "given", "what"), OPTIONS, ids=[row[0] for row in OPTIONS])
def test_an_option_changes_what_it_says(two_tables, option, given, what):
    table = two_tables / "ours.csv"
    base = {"labels": ..., "findings": "list"} if option == "separator" else {}
    given = dict(given)
    other = two_tables / given.pop("table", table.name)
    assert seen(opened(other, **base | given))[what] != usual(table, *base.items())[what]


def test_lists_of_findings(tmp_path):
    lists = ["Effusion|Mass", "No Finding", "", "normal", " Mass ", "kein Befund", "unlesbar"]
    rows = [(f"{n}.png", f"p{n}", cell) for n, cell in enumerate(lists)]
    table = write(tmp_path, rows, "file,pid,labels")
    options = {"image": "file", "site": ..., "split": ..., "labels": ..., "findings": "labels"}
    words = {"kein Befund": "negative", "unlesbar": "blank"}
    data = opened(table, **options, values=words)
    assert data.classes == ("Effusion", "Mass")
    nan = [np.nan, np.nan]
    np.testing.assert_array_equal(data.records().labels, [[1, 1], [0, 0], nan, [0, 0], [0, 1], [0, 0], nan])
    with refused(DataError, "line 2", "column 'labels'", "'Effusion'"):
        opened(table, **options | {"labels": ["Mass"]}, values=words).read()
    with refused(DataError, "line 2", "column 'labels'", "'Mass'"):
        opened(table, **options, values=words | {"Mass": "negative"}).read()
    with refused(DataError, "'Mass'"):
        opened(table, **options, values={"Mass": "positive"})


def test_patterns_names_without_suffix_and_capital_suffixes(tmp_path):
    for study, view in (("s1", "PA"), ("s1", "LAT"), ("s2", "PA")):
        (tmp_path / study).mkdir(exist_ok=True)
        Image.new("L", (9, 9), 5).save(tmp_path / study / f"{view}.PNG")
    (tmp_path / "t.csv").write_text("study,view,a\ns1,PA,1\ns1,LAT,0\ns2,PA,0\n")
    for image in ("{study}/{view}.png", "{study}/{view}"):
        data = ImageTable(tmp_path / "t.csv", image=image, labels=["a"])
        assert [Path(file).name for file in data.read_within().files] == ["PA.PNG", "LAT.PNG", "PA.PNG"]
    with refused(DataError, "t.csv", "image 's1'", "line", "2, 3"):
        ImageTable(tmp_path / "t.csv", image="study", labels=["a"]).read()


def test_harmonised_names_and_the_root_by_default(tmp_path):
    rows = [(f"{n}.png", f"p{n}", str(n % 2), str(n // 2 % 2)) for n in range(12)]
    table = write(tmp_path, rows, "file,pid,pleural_effusion,Rare Thing")
    options = {"site": ..., "split": ..., "names": "harmonised", "root": None, "image": "images/{file}"}
    ours = opened(table, **options, labels=["pleural_effusion", "Rare Thing"])
    assert ours.classes == ("Pleural Effusion", "Rare Thing")
    assert ours.records().names[0] == "images/0.png"
    with refused(DataError, "'Effusion'", "'Pleural Effusion'"):
        opened(table, **options, labels=["Effusion", "pleural_effusion"])


def test_a_patient_at_two_sites_is_in_one_split(tmp_path):
    rows = [(f"{n}.png", f"p{n % 6}", "north" if n < 12 else "south", "", "1", "no", "1") for n in range(24)]
    data = opened(write(tmp_path, rows), split=...)
    data.setup()
    assert "6 patients of ours are at more than one site, and in one split (equal ids)" in data.notes
    assert data.assignment.groupby("patient")["split"].nunique().max() == 1


def test_lines_of_cells_with_line_breaks(tmp_path):
    (tmp_path / "t.csv").write_text('a,note\n1,"two\nlines"\n\n2,x\n3,y\n')
    table, _ = read_any_table(tmp_path / "t.csv")
    assert table.lines.tolist() == [2, 5, 6]


def test_the_proposal_of_a_plain_table(tmp_path):
    found = propose(write(tmp_path), tmp_path / "images")
    assert found.arguments == {"table": str(tmp_path / "ours.csv"), "root": str(tmp_path / "images"), **ARGUMENTS}
    assert found.reasons["image"] == "24 of 24 rows have their image among 24 files"


PATTERNS = {
    "a path": ("path,a\nx/1.png,1\ny/2.png,0\n", "path"),
    "a path from elsewhere": ("path,a\n1,1\n2,0\n", "x/{path}"),
    "studies and views": ("study,view,a\nx,1,1\ny,2,0\n", "{study}/{view}.png"),
    "a name in a folder that all share": ("name,a\n1.png,1\n2.png,0\n", "x/{name}"),
}


@pytest.mark.parametrize(("text", "expected"), PATTERNS.values(), ids=PATTERNS)
def test_patterns_are_found(tmp_path, text, expected):
    (tmp_path / "t.csv").write_text(text)
    same = expected.startswith("x/")
    for folder, name in (("x", "1"), ("x" if same else "y", "2")):
        (tmp_path / "images" / folder).mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), 5).save(tmp_path / "images" / folder / f"{name}.png")
    assert propose(tmp_path / "t.csv", tmp_path / "images").arguments["image"] == expected


def test_what_is_proposed_of_findings_views_and_labels(tmp_path):
    views = ("PA", "LAT", "AP")
    rows = [(f"{n}.png", views[n % 3], "Mass|Edema" if n % 2 else "No Finding", f"P{n}", "male") for n in range(12)]
    found = propose(write(tmp_path, rows, "file,ViewPosition,Finding Labels,PatientID,sex"), tmp_path / "images")
    assert found.arguments["findings"] == "Finding Labels"
    assert found.arguments["separator"] == "|"
    assert sorted(found.arguments["views"]["ViewPosition"]) == ["AP", "PA"]
    assert found.arguments["patient"] == "PatientID"
    assert "site" not in found.arguments
    data = ImageTable(**found.arguments, image_size=8, cache_dir=str(tmp_path / "cache"))
    assert data.classes == ("Edema", "Mass")
    assert len(data.records().names) == 8


def test_data_check_proposes_a_yaml_that_runs_and_checks_it(tmp_path, fedlit_cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    table = write(tmp_path)
    code, out, err = fedlit_cli(f"data check {table} --root {tmp_path / 'images'} --decode")
    assert (code, err.strip()) == (0, "")  # rich before 15 ends a bar with a blank line
    document = yaml.safe_load(out[: out.index("\n\n")])
    assert document["experiment"] == "ours"
    assert document["data"]["init_args"]["labels"] == ["Edema", "Mass"]
    assert "no problems; the images were decoded" in out
    assert "site: clinic  # 2 different" in out
    (tmp_path / "images" / "7.png").unlink()
    code, out, _ = fedlit_cli(f"data check {table} --root {tmp_path / 'images'} --set '{{labels: [Mass], site: null}}'")
    assert code == 1
    assert "7.png (ours.csv, line 9)" in out
    assert "labels: [Mass]\n" in out
