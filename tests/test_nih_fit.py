"""``fedlit fit`` on the real chest X-rays: all 14 labels, patients apart, undefined where it must be."""

import math
from pathlib import Path

import pandas as pd
import pytest

from fedlit.data import NIHChestXray14
from fedlit.metrics.auroc import slugs
from fedlit.tracking.base import MetricsFile

REPOSITORY = Path(__file__).resolve().parent.parent
MINI = REPOSITORY.parent / "shared" / "data" / "nih-cxr14-mini"


@pytest.mark.skipif(not MINI.is_dir(), reason="../shared/data/nih-cxr14-mini is not there")
@pytest.mark.filterwarnings("ignore:class 'Hernia'")
@pytest.mark.slow
def test_two_rounds_of_the_shipped_config_with_a_small_backbone(folder: Path, fedlit_cli):
    options = (
        f"--data.root={MINI} --data.image_size=32 --data.cache_dir=cache --model.backbone=resnet10t "
        "--federation.rounds=2 --federation.workers=1 --logger=false"
    )
    fedlit_cli(f"fit --config {REPOSITORY / 'configs/nih/fedavg.yaml'} {options}").succeeded()
    assert len(NIHChestXray14.labels) == 14
    run = folder / "runs/nih/fedavg"
    last = {key: value for step, key, value in MetricsFile(run / "metrics.csv").rows() if step == 2}
    for split in ("val", "test/federation"):
        for label in slugs(NIHChestXray14.labels):
            positives, negatives = last[f"{split}/n_pos/{label}"], last[f"{split}/n_neg/{label}"]
            defined = positives > 0 and negatives > 0
            assert math.isnan(last[f"{split}/auroc/{label}"]) != defined
            assert positives + negatives > 0
    # the three Hernia images are of one patient, so they lie in one split
    hernia = [last["val/n_pos/Hernia"], last["test/federation/n_pos/Hernia"]]
    assert sorted(hernia) in ([0, 0], [0, 3])
    assert 0.5 < last["test/federation/auroc_macro"] < 1
    partition = pd.read_csv(run / "partition.csv", dtype=str)
    assert len(partition) == 1000
    assert partition.groupby("patient")["split"].nunique().max() == 1
    assert partition.groupby("patient")["client"].nunique().max() == 1
    assert partition["client"].nunique() == 4
    for name in ("config.yaml", "partition.png", "roc_federation.png"):
        assert (run / name).stat().st_size > 0
