"""Commands on the real chest X-rays: all 14 labels, patients apart, groups of the label file, undefined AUROCs."""

import math
from pathlib import Path

import pandas as pd
import pytest

from fedlit.data import NIHChestXray14
from fedlit.metrics.auroc import slugs
from fedlit.predictions.table import read
from fedlit.tracking.base import MetricsFile

REPOSITORY = Path(__file__).resolve().parent.parent
MINI = REPOSITORY.parent / "shared" / "data" / "nih-cxr14-mini"


@pytest.fixture
def line(folder: Path, fedlit_cli) -> str:
    """The options of a run of the shipped configuration that has ended, with a small backbone."""
    options = (
        f"--config {REPOSITORY / 'configs/nih/fedavg.yaml'} --data.root={MINI} --data.image_size=32 "
        "--data.groups [sex,age,view] --data.bands.age [20,40,60] --data.cache_dir=cache --model.backbone=small_cnn "
        "--federation.rounds=2 --federation.workers=1 --logger=false"
    )
    fedlit_cli(f"fit {options}").succeeded()
    return options


def check_metrics(last: dict[str, float]) -> None:
    for split in ("val", "test/federation"):
        for label in slugs(NIHChestXray14.labels):
            positives, negatives = last[f"{split}/n_pos/{label}"], last[f"{split}/n_neg/{label}"]
            assert math.isnan(last[f"{split}/auroc/{label}"]) != (positives > 0 and negatives > 0)
            assert positives + negatives > 0
    # the three Hernia images are of one patient, so they lie in one split
    hernia = [last["val/n_pos/Hernia"], last["test/federation/n_pos/Hernia"]]
    assert sorted(hernia) in ([0, 0], [0, 3])
    assert 0.5 < last["test/federation/auroc_macro"] < 1


@pytest.mark.skipif(not MINI.is_dir(), reason="../shared/data/nih-cxr14-mini is not there")
@pytest.mark.filterwarnings("ignore:class")
@pytest.mark.slow
def test_the_shipped_config_with_groups(line: str, folder: Path, fedlit_cli):
    run = folder / "runs/nih/fedavg"
    assert len(NIHChestXray14.labels) == 14
    check_metrics({key: value for step, key, value in MetricsFile(run / "metrics.csv").rows() if step == 2})
    partition = pd.read_csv(run / "partition.csv", dtype=str)
    assert len(partition) == 1000
    assert partition.groupby("patient")[["split", "client"]].nunique().max().tolist() == [1, 1]
    assert partition["client"].nunique() == 4
    for name in ("config.yaml", "partition.png", "roc_federation.png"):
        assert (run / name).stat().st_size > 0

    fedlit_cli(f"predict {line} --ckpt_path last --part val --output probabilities").succeeded()
    table = pd.read_csv(MINI / "Data_Entry_2017_v2020.csv", index_col=False).set_index("Image Index")
    bands = pd.cut(table["Patient Age"], [0, 20, 40, 60, 200], right=False, labels=["0-19", "20-39", "40-59", "60+"])
    for (file,) in (run.glob("predictions/federation.parquet"), folder.glob("probabilities/*_val.parquet")):
        found = read(file)
        assert len(found) > 50
        rows = table.loc[found.images]
        assert found.groups["sex"].tolist() == rows["Patient Gender"].map({"F": "female", "M": "male"}).tolist()
        assert found.groups["age"].tolist() == bands[found.images].tolist()
        assert found.groups["view"].tolist() == rows["View Position"].tolist()
    counts = pd.read_csv(run / "groups.csv")
    assert counts.groupby("group")["images"].sum().to_dict() == {"age": 1000, "sex": 1000, "view": 1000}
    labels = pd.read_csv(run / "labels.csv").groupby("class")[["positives", "negatives"]].sum()
    positives = table["Finding Labels"].str.split("|").explode().value_counts()
    assert labels["positives"].equals(positives[labels.index].rename("positives").rename_axis("class"))
    assert (labels.sum(axis=1) == 1000).all()
