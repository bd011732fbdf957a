"""Runs that cannot be compared: torn predictions, other classes or images, damaged files of a run."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from past_runs import config, predictions, write_run
from pyarrow import parquet
from support.hostile import check_printed, spread

from fedlit.predictions.table import read
from fedlit.reports.compare.runs import load_runs

FILE = Path("b/predictions/federation.parquet")
AGAIN = "`fedlit test --output FOLDER` writes them again"
NO_PARQUET = (f"{FILE}: expected predictions as Parquet, found", AGAIN)


@dataclass(frozen=True)
class Wrong:
    """Two runs, ``a`` and ``b``, with a mistake.

    Attributes:
        what: Short description of the mistake.
        change: Makes the mistake.
        words: Parts of the message.
        command: The command.
        code: Exit code.
    """

    what: str
    change: Callable[[], object]
    words: tuple[str, ...]
    command: str = "compare a b"
    code: int = 1


def cut(to: int) -> Callable[[], object]:
    return lambda: FILE.write_bytes(FILE.read_bytes()[:to])


def flipped() -> None:
    content = bytearray(FILE.read_bytes())
    content[300:420] = bytes(120)
    FILE.write_bytes(content)


def instead(make: Callable[[Path], object]) -> Callable[[], object]:
    return lambda: (FILE.unlink(), make(FILE))


def other(**fields: object) -> Callable[[], object]:
    return lambda: (
        shutil.rmtree("b"),
        write_run(Path("b"), replace(predictions(1.5, 1), **fields), config(("FedProx",))),
    )


def content(name: str, of: bytes) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(of)


def noted(**notes: str) -> Callable[[], object]:
    def change() -> None:
        table = parquet.read_table(FILE, partitioning=None)
        metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        parquet.write_table(table.replace_schema_metadata(metadata | notes), FILE)

    return change


def column(name: str, values: list | None) -> Callable[[], object]:
    def change() -> None:
        table = parquet.read_table(FILE, partitioning=None)
        at = table.column_names.index(name)
        changed = (
            table.remove_column(at) if values is None else table.set_column(at, name, pa.array(values * len(table)))
        )
        parquet.write_table(changed, FILE)

    return change


def infinite() -> None:
    scores = predictions(1.5, 1).scores.clone()
    scores[3, 1] = float("inf")
    other(scores=scores)()


def no_rows() -> None:
    shutil.rmtree("b")
    write_run(Path("b"), predictions(1.5, 1).take(np.arange(0)), config(("FedProx",)))


INPUTS = [
    Wrong("half a file", cut(2000), NO_PARQUET),
    Wrong("a file without its end", cut(-3), NO_PARQUET),
    Wrong("an empty file", cut(0), (f"{FILE}: expected predictions as Parquet, found an empty file", AGAIN)),
    Wrong("four bytes", cut(4), NO_PARQUET),
    Wrong("flipped bytes", flipped, NO_PARQUET),
    Wrong("a text", lambda: FILE.write_bytes(b"hello"), NO_PARQUET),
    Wrong("a CSV file", lambda: FILE.write_bytes(b"image,patient\n1,2\n"), NO_PARQUET),
    Wrong("a pipe", instead(os.mkfifo), ("found a named pipe",)),
    Wrong("a folder", instead(Path.mkdir), ("found a folder",)),
    Wrong("a link to itself", instead(lambda p: p.symlink_to(p.name)), ("a name that leads nowhere",)),
    Wrong("a Parquet file of others", lambda: parquet.write_table(pa.table({"x": [1]}), FILE), ("found no",)),
    Wrong("no images", no_rows, (str(FILE), "expected the predictions of images, found none")),
    Wrong("other classes", other(classes=("A", "B", "C")), ("the runs share no class", "FedProx has A, B, C")),
    Wrong("other images", other(images=np.array([f"z{n}" for n in range(120)])), ("share no image of the test set",)),
    Wrong("other labels", other(labels=1 - predictions(1, 1).labels), ("have other labels or patients",)),
    Wrong("an image twice", other(images=np.array(["x"] * 120)), ("found 'x' twice",)),
    Wrong("a score that is not finite", infinite, ("FedProx: expected finite scores",)),
    Wrong("a label 7", other(labels=predictions(1, 1).labels + 6), ("expected labels 0, 1, NaN, found", AGAIN)),
    Wrong("another test set", lambda: None, ("--set: no run has predictions of 'external'", "federation"),
        "compare a b --set external"),
    Wrong("a round that is a word", noted(round="three"), (str(FILE), "expected a number 'round', found 'three'")),
    Wrong("classes that are no JSON", noted(classes="[Eff"), (str(FILE), "expected a list 'classes', found '[Eff'")),
    Wrong("classes that are a number", noted(classes="3"), (str(FILE), "expected a list 'classes', found '3'")),
    Wrong("positives that are words", noted(trained_positives='["x"]'), (str(FILE),
        "expected a list 'trained_positives'")),
    Wrong("too few positives", noted(trained_positives="[1]"), (str(FILE),
        "expected 3 numbers as 'trained_positives', found 1")),
    Wrong("no patients", column("patient", None), (str(FILE), "found no patient")),
    Wrong("a score that is a word", column("score/Mass", ["x"]), (str(FILE), "expected numbers in the columns score/")),
    Wrong("a binary configuration", content("b/config.yaml", bytes(range(256))), ("b/config.yaml",
        "cannot be read as YAML")),
    Wrong("a configuration that is a list", content("b/config.yaml", b"[1, 2]"), ("b/config.yaml", "found '[1, 2]'")),
    Wrong("an empty configuration", content("b/config.yaml", b""), ("b/config.yaml", "found 'None'")),
    Wrong("a configuration that is no YAML", content("b/config.yaml", b"a: [b"), ("b/config.yaml",
        "cannot be read as YAML")),
    Wrong("a torn result", content("b/result.json", b'{"rounds": 3'), ("b/result.json", "found a damaged file")),
    Wrong("a result of lists without end", content("b/result.json", b"[" * 3000),
        ("b/result.json", "nested")),
    Wrong("a result that is a list", content("b/result.json", b"[]"), ("b/result.json", "found a damaged file")),
    Wrong("no result", lambda: Path("b/result.json").unlink(), ("b has not finished",)),
    Wrong("metrics that are no text", content("b/metrics.csv", bytes(range(256))),
        ("b/metrics.csv, line 1: expected 'step,key,value'",)),
    Wrong("a file for a run", lambda: None,
        ("a/config.yaml: expected a run directory, or a CSV or Parquet file of predictions, found another file",),
        "compare a/config.yaml"),
    Wrong("a folder without runs", lambda: Path("e").mkdir(), ("e: expected a run directory",), "compare e"),
    Wrong("no run", lambda: None, ("compare: name runs",), "compare"),
    Wrong("no such baseline", lambda: None, ("did you mean FedAvg?",), "compare a b --baseline FedAvgg"),
    Wrong("too few draws", lambda: None, ("--draws", "at least 100, found 99"), "compare a b --draws 99", 2),
    Wrong("a level of 1", lambda: None, ("--level", "found 1.0"), "compare a b --level 1", 2),
    Wrong("a margin of 0", lambda: None, ("--margin", "found 0.0"), "compare a b --margin 0", 2),
    Wrong("a margin of 1", lambda: None, ("--margin", "found 1.0"), "compare a b --margin 1", 2),
    Wrong("a level that is no number", lambda: None, ("level",), "compare a b --level nan", 2),
]  # fmt: skip


@pytest.fixture
def place(folder: Path) -> Path:
    write_run(Path("a"), predictions(0.5, 0), config(("FedAvg",)))
    write_run(Path("b"), predictions(1.5, 1), config(("FedProx",)))
    return folder


@pytest.mark.parametrize("wrong", spread({each.what: each for each in INPUTS}))
def test_it_is_refused_in_words(wrong: Wrong, place: Path, fedlit_cli):
    wrong.change()
    draws = "" if "--draws" in wrong.command else " --draws 100"
    check_printed(fedlit_cli(wrong.command + draws), wrong.words, wrong.code)
    assert not Path("comparison").exists()


@pytest.mark.parametrize("other", ["a", "./a", "{place}/a"])
def test_a_run_is_no_comparison_with_itself(other: str, place: Path):
    runs, notes = load_runs(["a", other.format(place=place)], None, {}, "", place)
    assert len(runs) == 1
    assert "is named more than once; it is used once" in notes[0]


def test_patients_that_are_null_are_unknown(place: Path):
    table = parquet.read_table(FILE, partitioning=None)
    parquet.write_table(table.set_column(1, "patient", pa.array([None] * len(table), pa.string())), FILE)
    assert set(read(FILE).patients) == {""}


def test_a_report_in_the_place_of_a_file_is_refused(place: Path, fedlit_cli):
    Path("out").write_text("text")
    fedlit_cli("compare a b --draws 100 --output out").refused("out")
