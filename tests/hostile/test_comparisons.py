"""Runs that cannot be compared: torn predictions, other classes or images, damaged files of a run."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from past_runs import config, predictions, write_run
from pyarrow import parquet
from refusals import refused, table

from fedlit.core.errors import CheckpointError, ConfigError, DataError
from fedlit.predictions.table import read
from fedlit.reports.compare.comparison import compare_runs
from fedlit.reports.compare.runs import load_runs

FILE = Path("b/predictions/federation.parquet")
AGAIN = "fedlit test --output"


def content(of: bytes, name: Path = FILE) -> Callable[[], object]:
    return lambda: name.write_bytes(of)


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
        changed = table.remove_column(at)
        if values is not None:
            changed = table.set_column(at, name, pa.array(values * len(table)))
        parquet.write_table(changed, FILE)

    return change


def infinite() -> None:
    scores = predictions(1.5, 1).scores.clone()
    scores[3, 1] = float("inf")
    other(scores=scores)()


def no_rows() -> None:
    shutil.rmtree("b")
    write_run(Path("b"), predictions(1.5, 1).take(np.arange(0)), config(("FedProx",)))


@pytest.fixture
def place(folder: Path) -> Path:
    write_run(Path("a"), predictions(0.5, 0), config(("FedAvg",)))
    write_run(Path("b"), predictions(1.5, 1), config(("FedProx",)))
    return folder


@table([
    ("half a file", lambda: FILE.write_bytes(FILE.read_bytes()[:2000]), DataError, AGAIN),
    ("a file without its end", lambda: FILE.write_bytes(FILE.read_bytes()[:-3]), DataError, AGAIN),
    ("an empty file", content(b""), DataError, "an empty file", AGAIN),
    ("flipped bytes", flipped, DataError, AGAIN),
    ("a text", content(b"hello"), DataError, AGAIN),
    ("a pipe", instead(os.mkfifo), DataError, "a named pipe"),
    ("a link to itself", instead(lambda p: p.symlink_to(p.name)), DataError),
    ("a Parquet file of others", lambda: parquet.write_table(pa.table({"x": [1]}), FILE), DataError),
    ("no images", no_rows, DataError),
    ("a label 7", other(labels=predictions(1, 1).labels + 6), DataError, AGAIN),
    ("a round that is a word", noted(round="three"), DataError, "'round'", "'three'"),
    ("classes that are no JSON", noted(classes="[Eff"), DataError, "'classes'", "'[Eff'"),
    ("positives that are words", noted(trained_positives='["x"]'), DataError, "'trained_positives'"),
    ("too few positives", noted(trained_positives="[1]"), DataError, "'trained_positives'", "found 1"),
    ("no patients", column("patient", None), DataError, "patient"),
    ("a score that is a word", column("score/Mass", ["x"]), DataError, "score/"),
])  # fmt: skip
def test_predictions_that_cannot_be_read_are_refused(provoke, kind, names, place: Path):
    provoke()
    with refused(kind, FILE, *names):
        read(FILE)


@table([
    ("other classes", other(classes=("A", "B", "C")), ConfigError, "FedProx has A, B, C"),
    ("other images", other(images=np.array([f"z{n}" for n in range(120)])), ConfigError),
    ("other labels", other(labels=1 - predictions(1, 1).labels), ConfigError),
    ("an image twice", other(images=np.array(["x"] * 120)), ConfigError, "'x' twice"),
    ("a score that is not finite", infinite, ConfigError, "FedProx", "finite"),
    ("a binary configuration", content(bytes(range(256)), Path("b/config.yaml")), CheckpointError, "b/config.yaml"),
    ("a configuration that is a list", content(b"[1, 2]", Path("b/config.yaml")), CheckpointError, "b/config.yaml",
        "'[1, 2]'"),
    ("a torn result", content(b'{"rounds": 3', Path("b/result.json")), ConfigError, "b/result.json"),
    ("a result of lists without end", content(b"[" * 3000, Path("b/result.json")), ConfigError, "b/result.json"),
    ("no result", lambda: Path("b/result.json").unlink(), ConfigError, "b has not finished"),
    ("metrics that are no text", content(bytes(range(256)), Path("b/metrics.csv")), DataError,
        "b/metrics.csv, line 1"),
])  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(provoke, kind, names, place: Path):
    provoke()
    with refused(kind, *names):
        compare_runs(*load_runs(["a", "b"], None, {}, "", place), draws=10)


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("compare a/config.yaml", ("a/config.yaml",), 1),
        ("compare a b --set external --draws 100", ("--set", "'external'", "federation"), 1),
        ("compare a b --level nan", ("level (command line)",), 2),
    ],
)
def test_a_command_that_cannot_compare_writes_nothing(line, words, code, place: Path, fedlit_cli):
    fedlit_cli(line).refused(*words, code=code)
    assert not Path("comparison").exists()


@pytest.mark.parametrize("other", ["./a", "{place}/a"])
def test_a_run_is_no_comparison_with_itself(other: str, place: Path):
    runs, notes = load_runs(["a", other.format(place=place)], None, {}, "", place)
    assert len(runs) == 1
    assert "is named more than once; it is used once" in notes[0]


def test_patients_that_are_null_are_unknown(place: Path):
    column("patient", [None])()
    assert set(read(FILE).patients) == {""}


def test_a_report_in_the_place_of_a_file_is_refused(place: Path, fedlit_cli):
    Path("out").write_text("text")
    fedlit_cli("compare a b --draws 100 --output out").refused("out")
