"""What is printed to whoever may have left, and names from outside in tables that people open."""

import errno
import os
import sys

import numpy as np
import pandas as pd
import pytest

from fedlit.core.system.files import inert, write_csv
from fedlit.core.system.output import lasting_output


def opened(monkeypatch: pytest.MonkeyPatch, number: int):
    stream = os.fdopen(number, "w", buffering=1)
    for name in ("stdout", "__stdout__"):
        monkeypatch.setattr(sys, name, stream)
    return stream


@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_what_nobody_can_read_any_more_is_discarded(kind: str, monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.openpty() if kind == "terminal" else os.pipe()
    stream = opened(monkeypatch, writer)
    with lasting_output():
        assert sys.stdout.isatty() == (kind == "terminal")
        print("seen")
        assert b"seen" in os.read(reader, 100)
        os.close(reader)
        print("unseen")
        sys.stdout.writelines(["unseen\n"])
        sys.stdout.flush()
    assert sys.stdout is stream
    stream.close()  # writes what is left


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
def test_another_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    with os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", closefd=False) as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "__stdout__", full)
        with lasting_output(), pytest.raises(OSError, match="space") as raised:
            print("x" * 100_000)
        assert raised.value.errno == errno.ENOSPC
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), full.fileno())


def test_a_redirected_stream_stays_as_it_is(capsys: pytest.CaptureFixture):
    before = sys.stdout
    with lasting_output():
        assert sys.stdout is before


@pytest.mark.parametrize("text", ["=1+1", "+1", "-site", "@SUM(A1)", "\t=1"])
def test_a_formula_is_shown_as_it_is(text, tmp_path):
    table = pd.DataFrame({"class": [text, "Edema"], text: [-0.5, np.nan], "n": [-1, 2], "own": [True, False]})
    write_csv(table, tmp_path / "table.csv")
    read = pd.read_csv(tmp_path / "table.csv", keep_default_na=False, dtype=str)
    assert list(read.columns) == ["class", f"'{text}", "n", "own"]
    assert read.to_numpy().tolist() == [[f"'{text}", "-0.5", "-1", "True"], ["Edema", "", "2", "False"]]
    assert table["class"].tolist() == [text, "Edema"]


@pytest.mark.parametrize("cell", ["a=b", "", -1, None, 0.5, True])
def test_other_cells_are_left_alone(cell):
    assert inert(cell) is cell
