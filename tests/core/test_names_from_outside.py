"""Names from outside in files that people open: no formula runs, and no terminal obeys."""

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused
from torch.utils.data import TensorDataset

from fedlit.core.errors import DataError
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData
from fedlit.core.system.spreadsheets import inert, write_csv
from fedlit.data.in_memory import GivenClients
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier


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


@pytest.mark.parametrize("sign", ["\x1b[31m", "\n", "\x00", "\x9b"])
@pytest.mark.parametrize("kind", ["client", "class"])
def test_a_name_with_control_characters_is_refused(sign, kind):
    """An escape sequence reached the terminal, and ended reports in the traceback of an XML parser."""
    client, name = (f"site{sign}", "Mass") if kind == "client" else ("site", f"Mass{sign}")
    images = TensorDataset(torch.zeros(4, 1, 28, 28), torch.eye(2).repeat(2, 1))
    data = GivenClients({client: ClientData(client, ("Edema", name), images)}, ("Edema", name), batch_size=2)
    with refused(DataError, f"a {kind} without control characters", repr(sign)[1:-1]):
        assemble(Federation(), ImageClassifier(("Edema", name), "small_cnn"), data, make_fabric("cpu"))
