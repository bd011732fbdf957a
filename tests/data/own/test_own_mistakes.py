"""The table of what custom data refuse: tables with their folder and arguments, class folders, and MedMNIST's files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from own_tables import opened, people, picture, write_columns, write_table
from refusals import refused, table

from fedlit.core.errors import ConfigError, DataError, MissingFileError
from fedlit.data import ClassFolders, ImageTable, MedMNIST
from fedlit.data.own.proposal import propose
from fedlit.data.tables import read_any_table

Provoke = Callable[[Path], object]

HEADER = "file,pid,clinic,part,Edema,Mass,dose"
ROWS = [f"{n}.png,p{n // 2},north,{('train', 'val', 'test')[n // 2 % 3]},{n % 2},no,{n}.5" for n in range(8)]
ARGUMENTS = {"image": "file", "patient": "pid", "site": "clinic", "split": "part", "labels": ["Edema", "Mass"]}
PEOPLE = [f"{name}/person{n}_{n}.png" for name in ("NORMAL", "PNEUMONIA") for n in range(12)]
SIZES = {"train": 40, "val": 8, "test": 12}


def ours(old: str = "", new: str = "", **options: object) -> Provoke:
    """Read images and a table of which one text is replaced; an option that is ``...`` is left out."""

    def read(folder: Path) -> object:
        write_table(folder, {"file": [f"{n}.png" for n in range(8)]})
        text = "\n".join([HEADER, *ROWS, ""])
        assert old in text
        (folder / "ours.csv").write_text(text.replace(old, new, 1))
        given = {k: v for k, v in (ARGUMENTS | {"root": folder} | options).items() if v is not ...}
        return ImageTable(folder / "ours.csv", **given, image_size=8, cache_dir=str(folder / "cache")).records()

    return read


def cell(column: str, text: str) -> Provoke:
    """Read a table with another cell in line 3."""

    def read(folder: Path) -> object:
        columns = people(4, clinic=["north"] * 4)
        columns[column][1] = f'"{text}"'
        return opened(write_columns(folder / "ours.csv", columns), site="clinic", root=folder).read()

    return read


def values(of_words: dict, **columns: list[str]) -> Provoke:
    """Read a table of four people with other columns, whose cells have these meanings."""

    def read(folder: Path) -> object:
        file = write_columns(folder / "ours.csv", people(4, **columns))
        return opened(file, labels=["Edema", *columns], values=of_words, root=folder).read()

    return read


def file(name: str, content: bytes, **options: object) -> Provoke:
    return lambda folder: [(folder / name).write_bytes(content), read_any_table(folder / name, **options)]


def of_test(ids: str, **options: object) -> Provoke:
    """Divide a table with a list of the ids of its test set."""

    def divide(folder: Path) -> None:
        (folder / "test.txt").write_text(ids)
        opened(write_table(folder, people()), **{"test": folder / "test.txt"} | options).setup()

    return divide


def proposal(text: str, folder: str = ".") -> Provoke:
    """Propose the arguments of a table of images ``0.png`` and ``1.png`` below a folder."""

    def made(place: Path) -> object:
        write_table(place, {"file": ["0.png", "1.png"]}).write_text(text)
        (place / "empty").mkdir()
        return propose(place / "ours.csv", place / folder)

    return made


def folders(*names: str, **options: object) -> Provoke:
    def read(folder: Path) -> object:
        for number, name in enumerate(names):
            (folder / "x" / name).parent.mkdir(parents=True, exist_ok=True)
            if Path(name).suffix:
                picture(number, 12).save(folder / "x" / name)
        return ClassFolders(**{"root": folder / "x", "image_size": 12} | options).read()

    return read


def medmnist(name: str, columns: int = 1, categories: int = 2, arrays: dict | None = None, **options) -> Provoke:
    def read(folder: Path) -> object:
        made = {}
        for split, count in SIZES.items():
            made[f"{split}_images"] = np.zeros((count, 28, 28), np.uint8)
            made[f"{split}_labels"] = np.resize(np.arange(categories, dtype=np.uint8), (count, columns))
        np.savez(folder / name, **made | (arrays or {}))
        return MedMNIST(folder / name, cache_dir=str(folder / "cache"), **options).records()

    return read


def archive(save: Callable, *content: object, **arrays: np.ndarray) -> Provoke:
    return lambda folder: [save(folder / "x.npz", *content, **arrays), MedMNIST(folder / "x.npz")]


TABLES = [
    ("an empty site", ours("0.png,p0,north", "0.png,p0, "), DataError, "ours.csv, line 2", "'clinic'"),
    ("an empty patient", ours("1.png,p0,", "1.png,,"), DataError, "ours.csv, line 3", "column 'pid'"),
    ("an empty image", ours("2.png,", ","), DataError, "ours.csv, line 4", "column 'file'"),
    ("an image twice", ours("2.png,", "1.png,"), DataError, "ours.csv", "image '1.png'", "line", "3, 4"),
    ("an unknown split", ours("p0,north,train", "p0,north,third"), DataError, "line 2", "'third'"),
    ("an unknown label", ours("train,0,no", "train,0,maybe"), DataError, "line 2", "column 'Mass'", "'maybe'",
        "{maybe: positive}"),
    ("a row that is too long", ours("0,no,0.5", "0,no,0.5,7"), DataError, "line 2", "found 8"),
    ("a row cut short", ours("1.png,p0,north", "1.png,north"), DataError, "line 3", "found 6"),
    ("an image elsewhere", ours("3.png", "../../3.png"), DataError, "'../../3.png'"),
    ("no such column", ours(patient="pidd"), DataError, "'pidd'"),
    ("no such label", ours(labels=["Edma"]), DataError, "'Edma'"),
    ("no such column in a pattern", ours(image="{study}.png"), DataError, "'study'"),
    ("an unknown view", ours(views={"clinic": ["nort"]}), DataError, "clinic 'nort'"),
    ("no view", ours(views={"clinic": []}), DataError, "'clinic'"),
    ("an unknown meaning", ours(values={"yes": "true"}), DataError, "values['yes']"),
    ("a policy for no label", ours(blank={"Edma": "ones"}), DataError, "blank", "'Edma'"),
    *((f"a depth of {depth}", ours(depth=depth), DataError, "depth", depth) for depth in (8, 17)),
    ("no image", ours(image=...), DataError, "image"),
    ("no label", ours(labels=...), DataError, "data.labels"),
    ("no folder", ours(root="nowhere"), MissingFileError, "nowhere", "no such folder"),
    ("words of splits without their column", ours(split=..., splits={"holdout": "test"}), DataError, "data.splits"),
    ("a word of an unknown split", ours(splits={"holdout": "tset"}), DataError, "'holdout'", "train", "'tset'"),
    *((f"nobody as {column}: {word}", cell(column, word), DataError, "ours.csv, line 3", column, word)
        for column in ("patient", "clinic") for word in ("#N/A", "#REF!", "#n/a", "unknown", "unbekannt")),
    *((f"the rounded id {number}", cell("patient", number), DataError, "line 3", "patient", number)
        for number in ("1.23E+11", "1,2e+09", "4E+15")),
    ("a list of nobody", of_test("p12\n\nq99\n"), DataError, "test.txt, line 3", "ours.csv", "'q99'"),
    ("an empty list", of_test("\n"), DataError, "test.txt"),
    ("a list without its split", of_test("\n", official_split=False), DataError, "data.test"),
    ("no list", of_test("\n", test="none.txt"), MissingFileError, "none.txt"),
    ("a range of no number", values({"Age": {">= x": "positive"}}, Age=list("1234")), DataError,
        "data.values: 'Age'", "'>= x'"),
    ("an unknown meaning of a range", values({"Age": {">= 18": "yes"}}, Age=list("1234")), DataError,
        "values['Age']['>= 18']", "positive"),
    ("a range of an unknown column", values({"Agee": {">= 18": "positive"}}, Age=list("1234")), DataError, "'Agee'"),
    ("a range without its column", values({">= 18": "positive"}, Age=list("1234")), DataError, "'>= 18'", "positive"),
]  # fmt: skip

FILES = [
    ("an empty file", file("t.csv", b""), DataError, "t.csv"),
    ("only a header", file("t.csv", b"a,b\n"), DataError, "t.csv"),
    ("an archive", file("t.csv", b"PK\3\4\0\0"), DataError, "t.csv"),
    ("no file", lambda folder: read_any_table(folder / "u.csv"), MissingFileError, "u.csv", "no such file"),
    ("ids and no header", file("t.csv", b"IM0,p0,0,1\nIM1,p0,0,0\nIM2,p1,1,1\n"), DataError, "t.csv", "header", "IM0"),
    *((what, file("ours.xlsx", content), DataError, "ours.xlsx", what) for what, content in (
        ("web page", b"<html><table></table></html>"), ("text", b"a,b\n1,2\n"))),
    ("XML", file("ours.xls", b"\xef\xbb\xbf\n <?xml version='1.0'?>"), DataError, "ours.xls", "web page"),
    ("an unknown encoding", file("t.csv", b"a,b\n1,\xfc\n", encoding="chinese-2"), DataError, "data.encoding",
        "'chinese-2'"),
    ("an encoding that does not fit", file("t.csv", b"a,b\n1,\xfc\n", encoding="ascii"), DataError, "line 2", "ascii"),
    ("no label to propose", proposal("file,pid,remark\n0.png,p0,word\n1.png,p1,other\n"), ConfigError,
        "no column has labels such as 1, 0, -1, yes, no, positive,"),
    ("no image to propose", proposal("a,b\nz,yes\ny,no\n"), ConfigError, "'0.png'"),
    ("a folder without images", proposal("file,b\n0.png,yes\n", "empty"), ConfigError, "empty"),
    ("no folder of images", proposal("file,b\n0.png,yes\n", "gone"), ConfigError, "gone"),
]  # fmt: skip

FOLDERS = [
    ("no root", folders("A/1.png", root=None), DataError, "data.root"),
    ("one class", folders("A/1.png"), MissingFileError, "'A'"),
    ("images and masks", folders("images/1.png", "masks/1.png"), DataError, "'masks'"),
    ("splits and classes", folders("train/A/1.png", "B/1.png"), DataError, "'train'", "'B'"),
    ("no pattern", folders(*PEOPLE, patient="person("), DataError, "data.patient"),
    ("another name", folders(*PEOPLE, patient=r"pers(\d+)"), DataError, "24 of 24", "'NORMAL/person0_0.png'"),
    ("no such folder", folders(), MissingFileError, "x: no such folder"),
    ("MedMNIST without a file", lambda folder: MedMNIST(), DataError, "data.file is missing"),
    ("no such file", lambda folder: MedMNIST(folder / "gone.npz"), MissingFileError, "gone.npz"),
    ("an array too few", archive(np.savez, train_images=np.zeros((2, 28, 28))), DataError, "'train_images'",
        "train_labels"),
    ("no classes for some labels", medmnist("pneumoniamnist.npz", categories=5), DataError, "to 1", "0 to 4",
        "'normal'"),
    ("three dimensions", medmnist("y.npz", arrays={"train_images": np.zeros((40, 28, 28, 28), np.uint8)}), DataError,
        "_images [N, height, width] or [N, height, width, 3] and"),
    ("too few labels", medmnist("chestmnist.npz", columns=14, labels=["a"]), DataError, "expected 14", "found 1"),
    ("an unknown class", medmnist("two.npz", classes=["x"]), DataError, "data.classes", "'x'"),
]  # fmt: skip


@table([*TABLES, *FILES, *FOLDERS])
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)
