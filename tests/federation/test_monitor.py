"""The metric that selects the best model, and its direction."""

from pathlib import Path

import pytest
import yaml

from fedlit.experiment.naming import group_name
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor

SHORT = (
    "--data toys.ToyData --model toys.ToyNet --federation.schedule.window 2 --federation.schedule.unit steps "
    "--logger false --federation.workers 1 --federation.checkpoint_every 1 --name one --model.lr 2 "
    "--federation.rounds 4"
)


@pytest.fixture
def place(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "default" / "one"


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_default_direction_of_a_loss_goes_on_a_run_with_the_same_one(fedlit_cli, place, mode):
    one = SHORT.replace("rounds 4", "rounds 1")
    fedlit_cli(f"fit {one} --federation.monitor val/loss --federation.monitor_mode {mode}").succeeded()
    resumed = fedlit_cli(f"fit {SHORT} --federation.monitor val/loss --ckpt_path last")
    if mode == "min":
        resumed.succeeded()
    else:
        resumed.refused("federation.monitor_mode: max there, min now")


def test_the_default_is_written_as_max(fedlit_cli, place):
    assert fedlit_cli(f"fit {SHORT.replace('rounds 4', 'rounds 1')}")[0] == 0
    settings = yaml.safe_load((place / "config.yaml").read_text())
    assert (settings["federation"]["monitor"], settings["federation"]["monitor_mode"]) == ("auto", "max")
    assert group_name(settings, "FedAvg") == "FedAvg-a3982511"


SAID = [
    ({"monitor": "val/loss"}, "min"),
    ({"monitor": "val/loss", "monitor_mode": "max"}, "max"),
    ({"monitor": "client/site-0/auroc_macro"}, "max"),
    ({"monitor": "own/score", "monitor_mode": "min"}, "min"),
    ({}, "max"),
]


@pytest.mark.parametrize(("given", "mode"), SAID, ids=[str(number) for number in range(len(SAID))])
def test_what_is_said_counts_and_else_the_name(given, mode):
    assert Federation(**given).better == mode


@pytest.mark.parametrize("metric", ["train/loss", "client/a/train_loss", "client/a/loss"])
def test_a_metric_of_a_round_is_awaited(metric):
    assert Monitor.resolve(Federation(monitor=metric), {"val/loss": 1.0, "client/a/loss": 1.0}).mode == "min"


def test_a_metric_of_ones_own_is_awaited_where_something_may_log_it():
    federation = Federation(monitor="own/loss")
    assert Monitor.resolve(federation, {"val/loss": 1.0}, more=True).metric == "own/loss"


def test_the_least_of_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="federation.monitor_mode: min has no effect"):
        Federation(monitor_mode="min")


COUNTS = {"val/n_pos/Edema": 9.0, "val/n_pos/Mass_Nodule": 10.0, "val/n_pos/Rare": 2.0, "val/n_pos/Absent": 0.0,
          "val/n_pos/Hidden": float("nan")}  # fmt: skip
METRICS = COUNTS | {key.replace("n_pos", "auroc"): 0.5 for key in COUNTS}
SCHEMES = {"a": ("Edema", "Mass/Nodule"), "b": ("Edema", "Rare", "Mass/Nodule")}


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        ("val/auroc_macro", "Edema (9), Rare (2);"),
        ("val/auroc_client_mean_macro", "Edema (9), Rare (2);"),
        ("val/auroc_own_macro", "Edema (9), Rare (2);"),
        ("val/auroc_shared", "Edema (9);"),
        ("val/auroc_own_unique", "Rare (2);"),
        ("val/auroc/Rare", "Rare (2);"),
        ("val/auroc/Mass_Nodule", ""),
        ("val/loss", ""),
        (None, ""),
    ],
)
def test_a_monitor_that_rests_on_few_positives_is_warned_of(metric: str | None, named: str):
    said = Monitor(metric, "max").few_positives(METRICS, SCHEMES)
    assert (f"{metric}, which" in said and named in said) if named else said == ""


def test_the_warning_is_printed_once(fedlit_cli, place):
    out = fedlit_cli(f"fit {SHORT} --data.size 4").succeeded()
    assert out.count("fewer than 10 positive validation images") == 1
