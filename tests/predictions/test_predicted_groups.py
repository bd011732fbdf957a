"""Groups of images arrive in the predictions of a run and of ``fedlit predict``."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedlit.data import ByPatient, FederatedDataModule
from fedlit.federation.engines.scores import Scores, View
from fedlit.predictions.table import collected, read

MINI = Path(__file__).parents[3] / "shared" / "data" / "nih-cxr14-mini"
SETS = {
    "north": SimpleNamespace(groups={"sex": np.array(["f", "m", "f"])}),
    "south": SimpleNamespace(groups={"view": ["PA", "AP", "PA"], "sex": np.array(["m"])}),
    "west": SimpleNamespace(groups=["of", "something", "else"]),
}


class Rows(SimpleNamespace):
    """A data set of three rows."""

    def __len__(self) -> int:
        return 3


def test_views_with_other_groups_are_joined_and_cut_to_what_was_scored():
    """Groups that a view lacks, or that do not fit its rows, are unknown there."""

    class Session:
        classes, personal, data = ("Edema",), [], FederatedDataModule(ByPatient(2))
        learned = staticmethod(lambda client: {"Edema"})
        program = SimpleNamespace(dataset=lambda view: Rows(**vars(SETS[view.holder])))

    scores = [Scores(View(None, name, "test"), n, torch.zeros(n, 1), torch.ones(n, 1), {})
              for name, n in (("north", 2), ("south", 3), ("west", 3))]  # fmt: skip
    found = collected(Session(), "federation", scores, 1)
    assert found.name == "federation"
    assert {name: of.tolist() for name, of in found.groups.items()} == {
        "sex": ["f", "m", "", "", "", "", "", ""],
        "view": ["", "", "PA", "AP", "PA", "", "", ""],
    }


@pytest.mark.filterwarnings("ignore:class")
@pytest.mark.slow
@pytest.mark.skipif(not MINI.is_dir(), reason="needs ../shared/data/nih-cxr14-mini")
def test_sex_and_age_of_real_patients(fedlit_cli, folder):
    """The NIH's 1,000 images: the groups of a run and of `predict` are those of the label file."""
    line = (
        f"--data NIHChestXray14 --data.root {MINI} --data.groups [sex,age,view] --data.bands.age [20,40,60] "
        "--data.image_size 16 --data.cache_dir cache --model.backbone small_cnn "
        "--federation.rounds 1 --federation.workers 1 --logger false --name run"
    )
    fedlit_cli(f"fit {line}").succeeded()
    fedlit_cli(f"predict {line} --ckpt_path last --part val --output probabilities").succeeded()
    table = pd.read_csv(MINI / "Data_Entry_2017_v2020.csv", index_col=False).set_index("Image Index")
    bands = pd.cut(table["Patient Age"], [0, 20, 40, 60, 200], right=False, labels=["0-19", "20-39", "40-59", "60+"])
    files = folder.glob("runs/default/run/predictions/federation.parquet"), folder.glob("probabilities/*_val.parquet")
    for (file,) in files:
        found = read(file)
        assert len(found) > 50
        rows = table.loc[found.images]
        assert found.groups["sex"].tolist() == rows["Patient Gender"].map({"F": "female", "M": "male"}).tolist()
        assert found.groups["age"].tolist() == bands[found.images].tolist()
        assert found.groups["view"].tolist() == rows["View Position"].tolist()
    counts = pd.read_csv(folder / "runs/default/run/groups.csv")
    assert counts.groupby("group")["images"].sum().to_dict() == {"age": 1000, "sex": 1000, "view": 1000}
    labels = pd.read_csv(folder / "runs/default/run/labels.csv").groupby("class")[["positives", "negatives"]].sum()
    positives = table["Finding Labels"].str.split("|").explode().value_counts()
    assert labels["positives"].equals(positives[labels.index].rename("positives").rename_axis("class"))
    assert (labels.sum(axis=1) == 1000).all()
