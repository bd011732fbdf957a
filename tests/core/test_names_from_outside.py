"""Names from outside in files that people open: no formula runs, and no terminal obeys."""

import numpy as np
import pandas as pd
import pytest

from fedlit.core.system.spreadsheets import inert, write_csv


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
