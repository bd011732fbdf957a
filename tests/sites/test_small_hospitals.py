"""Sites with so few images that they tell nothing of any class: what the person at the keyboard reads in its place."""

import math
from pathlib import Path

import pytest
from at_sites import Ended, Sites
from rich.console import Console

from fedlit.cli.tables import auroc_table

HIDING = {"leaves": {"scores": False, "counts_below": 1000}, "floors": None}
TELLING = {"leaves": {"scores": False, "counts_below": 0}, "floors": None}


@pytest.fixture
def line(tmp_path: Path) -> str:
    return (
        "fit --data PhantomCXR --data.hospitals 2 --data.images 80 --data.image_size 16 --data.batch_size 8 "
        "--data.seed 3 "
        f"--data.cache_dir {tmp_path / 'cache'} --model.backbone small_cnn --federation.rounds 2 "
        f"--federation.schedule.window 2 "
        f"--federation.schedule.unit steps --logger false --name one --run_dir {tmp_path} --sites loopback:2"
    )


@pytest.mark.filterwarnings("ignore")
def test_what_no_site_tells_is_said_at_the_start_in_each_round_and_at_the_end(tmp_path, sites: Sites, ran, line):
    sites.rules = {"site-1": HIDING, "site-2": HIDING}
    out = ran(line).out
    start, _, rounds = out.partition("round 1/2")
    assert "no site reports the AUROC of any class in validation" in start
    assert "the model of the last round counts as the best; federation.monitor: train/loss" in start
    assert rounds.count("val AUROC not reported") == 2
    assert "nan" not in rounds
    assert "val/auroc_macro was undefined in every round: the last model counts as the best" in rounds
    rows = [row for row in rounds.splitlines() if row.count("not reported") == 3]
    metrics = {key: value for _, key, value in Ended(tmp_path).kept.metrics()}
    untold = [key for key, value in metrics.items() if key.startswith("test/federation/n_pos/") and value == "nan"]
    assert len(rows) == len(untold) > 1
    counts = {v for k, v in metrics.items() if k.startswith(("val/n_pos/", "val/n_neg/", "val/auroc/"))}
    assert counts == {"nan"}


@pytest.mark.filterwarnings("ignore")
def test_what_one_site_tells_is_shown_and_nothing_is_said_of_a_model_for_mlflow(
    sites: Sites, ran, line, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    sites.rules = {"site-1": HIDING, "site-2": TELLING}
    _, out, err = ran(line.replace("--logger false", "--federation.rounds 1"))
    assert "val AUROC not reported" not in out
    assert "was undefined in every round" not in out
    assert "MLflow model" not in out + err


def test_a_class_without_positives_is_undefined_and_its_numbers_are_0():
    metrics = {"test/a/auroc/x": math.nan, "test/a/n_pos/x": 0.0, "test/a/n_neg/x": 5.0, "test/a/auroc_macro": math.nan}
    console = Console(width=100)
    with console.capture() as shown:
        console.print(auroc_table(metrics, "test/a", "title"))
    (row,) = [line for line in shown.get().splitlines() if " x " in line]
    assert row.replace("│", " ").split() == ["x", "undefined", "0", "5"]
