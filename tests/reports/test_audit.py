"""The audit of a trained model: what its losses reveal about its training patients, and when there is no number."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from hospital_source import make_records
from refusals import Cli, refused
from sklearn.metrics import roc_auc_score

from fedlit.core.errors import ConfigError
from fedlit.core.system.shipped import CONFIGS
from fedlit.data import Organisations, PhantomCXR
from fedlit.reports.audit import Audit, audited, images_of, losses
from fedlit.reports.compare.card import model_card
from fedlit.reports.reproductions.report import tables_of

CONFIG = {
    "data": {"class_path": "PhantomCXR", "init_args": {"hospitals": 2, "images": 200, "image_size": 16}},
    "model": {
        "class_path": "ImageClassifier",
        "init_args": {"backbone": "small_cnn", "optimizer": {"class_path": "Adam", "init_args": {"lr": 0.005}}},
    },
    "federation": {
        "rounds": 1,
        "workers": 1,
        "schedule": {"init_args": {"window": 4}, "class_path": "ConstantSchedule"},
    },
    "fabric": {"accelerator": "cpu"},
    "logger": False,
    "name": "one",
}


def fitted(cli: Cli, folder: Path, options: str = "") -> Path:
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    cli(f"fit --config {file} --run_dir {folder} {options}").succeeded()
    return folder / "default" / "one"


def audit_of(cli: Cli, run: Path) -> dict:
    cli(f"audit {run} --draws 100").succeeded()
    return json.loads((run / "audit" / "audit.json").read_text())


def table(members: int = 60, others: int = 40, clients: int = 1, **columns) -> pd.DataFrame:
    """Images of one patient each, in which the loss says nothing."""
    rng, count = np.random.default_rng(0), members + others
    rows = {"loss": rng.exponential(size=count), "member": np.arange(count) < members, "drawn": True, "site": "s"}
    rows |= {"patient": [f"p{i}" for i in range(count)], "client": [f"c{i % clients}" for i in range(count)]}
    return pd.DataFrame(rows | {"positive/Mass": np.arange(count) % 2 == 0} | columns)


def audit(images: pd.DataFrame, *by: str) -> Audit:
    return audited(images, by or None, 0.95, 100)


@pytest.mark.slow
def test_a_model_that_memorises_is_found_out(fedlit_cli: Cli, tmp_path: Path):
    memorising = "--data.hospitals 1 --data.images 100 --data.batch_size 8 --data.augment false"
    schedule = "--federation.schedule.window 15 --federation.schedule.unit epochs"
    run = fitted(fedlit_cli, tmp_path, f"{memorising} {schedule}")
    found = audit_of(fedlit_cli, run)["results"][0]["auroc"]
    assert 1 > found["value"] > 0.75  # at 1 it has no interval
    assert found["low"] > 0.6


def test_a_run_is_audited_without_augmentation_by_client_and_class_and_its_card_says_so(
    fedlit_cli: Cli, tmp_path: Path
):
    run = fitted(fedlit_cli, tmp_path)
    first = audit_of(fedlit_cli, run)
    assert [row["of"] for row in first["results"]] == ["all", *["positive for"] * 10, *["client"] * 2]
    whole = first["results"][0]
    assert whole["members"] > 60 > whole["others"] > 20
    assert 0 < whole["auroc"]["low"] < whole["auroc"]["value"] < whole["auroc"]["high"] < 1
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["init_args"]["augment"] is True
    config["data"]["init_args"]["augment"] = False
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert tables_of(CONFIGS / "privacy").membership(run) == pytest.approx(whole["auroc"]["value"], abs=1e-12)
    page = (run / "audit" / "report.html").read_text()
    assert first["verdict"] in page
    assert page.count("<svg") == 1
    card = model_card(run, 0.95, 100)
    assert first["verdict"] in card
    assert f"| all | {whole['members']} | {whole['others']} |" in card
    moved = (run / "partition.csv").read_text().replace(",val", ",train", 1)
    (run / "partition.csv").write_text(moved)
    with refused(ConfigError, "partition.csv", "training set"):
        images_of(run)
    (run / "audit" / "audit.json").write_text(json.dumps(first | {"weights": "of another model"}))
    assert f"results of `fedlit audit {run}`" in model_card(run, 0.95, 100)


def test_a_run_that_cannot_be_audited_here_is_refused(fedlit_cli: Cli, tmp_path: Path):
    fedlit_cli(f"audit {tmp_path}").refused(tmp_path, "checkpoints")
    (tmp_path / "sites.json").write_text("{}")
    fedlit_cli(f"audit {tmp_path}").refused(tmp_path, "fedlit site audit")


def test_a_patients_loss_is_the_mean_over_the_patients_images():
    images = table(clients=2)
    twice = pd.concat([images, images.assign(loss=images["loss"] * 3)])
    patients = twice.groupby("patient").agg({"loss": "mean", "member": "any"})
    found = audit(twice, "site").rows
    assert [row.name for row in found] == ["all", "positive for Mass", "site s"]
    assert found[0].estimates["auroc"].value == pytest.approx(roc_auc_score(patients["member"], -patients["loss"]))
    assert (found[0].members, found[0].others, found[1].members) == (60, 40, 30)


def test_few_patients_have_no_number_and_no_count():
    found = audit(table(others=19, **{"group/sex": np.arange(79) % 2}).astype({"group/sex": str}))
    assert [row.estimates == {} for row in found.rows] == [False, False, False, True]
    hidden = found.as_json()["results"][3]
    assert (hidden["others"], hidden["auroc"], hidden["reason"] != "") == (None, None, True)
    few = audit(table(others=9))
    assert few.curve is None
    assert "fewer than 10" in few.verdict


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"drawn": None}, "their own split"),
        ({"drawn": np.arange(100) < 60}, "official"),
        ({"client": np.where(np.arange(100) < 55, "a", "b")}, "clients differ"),
    ],
)
def test_sides_that_chance_did_not_draw_are_not_comparable(changed: dict, said: str):
    found = audit(table(**changed))
    assert [word for word in (said, "not comparable") if word not in found.verdict] == []
    assert all(row.estimates == {} for row in found.rows if row.of != "client")


def test_images_of_an_official_test_set_are_left_out():
    found = audit(table(drawn=np.arange(100) < 80))
    assert (found.rows[0].members, found.rows[0].others) == (60, 20)
    assert "20 of 100 images are left out" in found.notes[0]


def test_unknown_patients_are_counted_as_images():
    assert "each image counts as one" in audit(table(patient="")).notes[0]


def test_a_kind_of_groups_that_the_data_lack_is_refused():
    with refused(ConfigError, "--by", "client, site", "'scanner'"):
        audit(table(), "scanner")


def test_the_loss_is_the_cross_entropy_of_known_labels():
    scores, nan = torch.tensor([[1.0, -2.0], [0.5, 3.0], [0.0, 0.0]]), float("nan")
    labels = torch.tensor([[1.0, 0.0], [nan, 0.0], [nan, nan]])
    expected = [np.log1p(np.exp([-1.0, -2.0])).mean(), np.log1p(np.exp(3.0)), nan]
    assert losses(scores, labels, exclusive=False) == pytest.approx(expected, nan_ok=True)
    shares = scores[:2].double().softmax(1)
    found = losses(torch.logit(shares), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), exclusive=True)
    assert found == pytest.approx([-np.log(shares[0, 1].item()), -np.log(shares[1, 0].item())])


def test_which_images_chance_has_drawn(tmp_path: Path):
    records = make_records(tmp_path)
    assert records.drawn_names() == set(records.names)
    splits = np.array(["train_val", "test"])[np.arange(len(records.names)) % 2]
    assert replace(records, splits=splits).drawn_names() == set(records.names[::2])
    one = PhantomCXR(hospitals=1, images=20, image_size=16, cache_dir=tmp_path)
    two = PhantomCXR(hospitals=1, images=20, image_size=16, cache_dir=tmp_path, seed=1)
    joined = Organisations({"a": one, "b": two}, image_size=16, cache_dir=tmp_path)
    joined.setup()
    assert joined.drawn_images() == set(joined.assignment["image"])
