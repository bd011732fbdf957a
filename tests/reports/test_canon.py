"""The tables of the canon: which runs are compared, what is claimed, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from refusals import refused
from reproduced import measured_run
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from fedlit.core.errors import ConfigError
from fedlit.core.system.shipped import CONFIGS
from fedlit.data.phantom import Hospital, PhantomCXR
from fedlit.experiment.sweep import load_sweep, plan
from fedlit.models import ImageClassifier
from fedlit.reports.reproductions.report import tables_of
from fedlit.reports.reproductions.reproduction import Reproduction

TABLES = tables_of(CONFIGS / "canon")
DRAWS = 6
NOISE = np.random.default_rng(0).normal(0, 0.001, (3, DRAWS))


def test_the_shipped_body_is_a_model_that_its_plan_trains():
    """Its validation AUROC was 0.9296; weights as drawn have 0.5."""
    (planned,) = plan(load_sweep(CONFIGS / "canon/laptop/body.yaml"))
    file = CONFIGS / "canon/laptop/body.safetensors"
    with safe_open(file, "pt") as stored:
        trained, wanted = yaml.safe_load(stored.metadata()["config"]), yaml.safe_load(planned.config)
    for section in ("seed", "data", "model", "federation", "fabric"):
        assert trained[section] == wanted[section]
    data = PhantomCXR(hospitals=[Hospital("public", 3000)], image_size=32, split=(0.8, 0.2, 0.0), augment=False)
    data.setup()
    (client,) = data.clients.values()
    images, labels = (torch.stack(each) for each in zip(*client.val, strict=True))
    model = ImageClassifier(data.classes, "small_cnn", features="standardised")
    model.load_state_dict(load_file(file))
    with torch.no_grad():
        scores = model.eval()(images)
    assert roc_auc_score(labels, scores, average="macro") == pytest.approx(0.9296, abs=5e-4)


NEAR_DIVERGENCE = """
experiment: digits
config: [CANON/phantom.yaml]
starts: CANON/laptop/body.safetensors
set: {model.objective: AUCSaddle, federation.aggregators: [CODAPlus], model.optimizer.lr: 3.0}
"""
FEW = "{data.images: 300, data.split: [0.5, 0.1, 0.4]}"
SHOWN = """
from fedlit.reports.reproductions.report import Report, curve, measured

def make(runs):
    (directory,) = runs["directory"]
    (_, loss), auroc = curve(directory, "train/loss")[-1], measured(directory)["test/federation/auroc_macro"]
    return Report(f"AUROC {auroc!r}, loss {loss!r}", {})
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__.partition("+")[0] != "2.14.1", reason="another PyTorch has other digits")
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="no AVX2")
def test_digits_are_the_same_on_every_machine(tmp_path):
    """At this rate training amplifies the last digit. ``tests/benchmarks/digits.py`` emulates other processors."""
    (tmp_path / "plan.yaml").write_text(NEAR_DIVERGENCE.replace("CANON", str(CONFIGS / "canon")))
    (tmp_path / "tables.py").write_text(SHOWN)
    base = f"base: {CONFIGS / 'canon/canon.yaml'}\nscales: {{laptop: {{plans: [plan.yaml]}}}}\n"
    (tmp_path / "digits.yaml").write_text(base)
    words = ["reproduce", "digits.yaml", "--jobs", "1", "--set", FEW]
    done = subprocess.run(
        [sys.executable, "-c", "import gc; gc.disable(); from fedlit.cli.main import main; main()", *words],
        cwd=tmp_path, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "AUROC 0.8533730108489982, loss 0.05589899569749833\n" in done.stdout


def test_keys_of_bodies_are_refused_as_none_is_trained():
    with refused(ConfigError, "--set_body: nothing in canon trains a body"):
        Reproduction("canon", set_body={"model.backbone": "resnet10t"})


def row(folder: Path, plan: str, case: str, seed: int, pooled: float, own: float, **columns: object) -> dict:
    tested = {"test/federation/auroc_macro": pooled, "test/federation/auroc_client_mean_macro": own}
    directory = measured_run(folder / plan / f"{case}-{len(columns)}-{seed}", tested)
    return {"plan": plan, "stage": "", "case": case, "seed": seed, "directory": directory} | columns


def of_windows(folder: Path, draws: int = DRAWS) -> pd.DataFrame:
    """CODASCA is ahead in pooled AUROC at I = 512, and equal but for noise elsewhere."""
    rows = []
    for window in ("64", "256", "512", "iid"):
        for seed in range(draws):
            data, *noise = 0.05 * seed, *NOISE[:, seed]
            rows += [row(folder, "windows", f"coda-plus-{window}", seed, 0.6 + data, 0.6 + data)]
            pooled = 0.6 + data + 0.01 * (window == "512") + noise[0]
            rows += [row(folder, "windows", f"codasca-{window}", seed, pooled, 0.6 + data + noise[1])]
    return pd.DataFrame(rows)


def test_the_draw_is_taken_out_and_holm_counts_the_whole_table(tmp_path):
    report = TABLES.make(of_windows(tmp_path))
    table = report.tables["windows"].set_index(["row", "auroc"])
    assert len(table) == 8
    found = table.loc[("I = 512", "pooled")]
    differences = 0.01 + NOISE[0]
    assert found["difference"] == pytest.approx(differences.mean())
    half = 2.5706 * differences.std(ddof=1) / np.sqrt(DRAWS)
    assert found["high"] - found["difference"] == pytest.approx(half, rel=1e-4)
    assert found["p_holm"] == pytest.approx(8 * found["p"])
    assert list(table[table["claimed"]].index) == [("I = 512", "pooled")]
    assert f"**{differences.mean():+.4f} [" in report.text
    assert "1 of 8 differences are beyond noise" in report.text
    assert set(report.figures) == {"windows"}


def test_each_draw_chooses_its_rate_by_validation_after_each_round(tmp_path):
    rows = []
    for case in ("vanilla-5", "partial-5", "surgical-5", "vanilla-10", "partial-10", "surgical-10"):
        for seed in range(3):
            for rate in (0.1, 1.0):
                # The low rate is better in validation early, the high one late; tests say which was taken.
                scores = {
                    count: {
                        "val/auroc_macro": 0.7 + (0.1 if (rate == 0.1) == (count < 16) else 0.0),
                        "test_curve/federation/auroc_macro": rate + 0.01 * seed * (case == "surgical-5"),
                        "test_curve/federation/auroc_client_mean_macro": rate,
                    }
                    for count in TABLES.ROUNDS
                }
                directory = measured_run(tmp_path / f"{case}-{rate}-{seed}", {}, scores)
                rows.append({"plan": "missing", "stage": "", "case": case, "seed": seed, "directory": directory})
                rows[-1]["model.optimizer.lr"] = rate
    tables = TABLES.make(pd.DataFrame(rows)).tables
    found = tables["missing"].set_index(["row", "first", "auroc"])
    assert found.loc[("K = 5, round 4", "partial", "pooled"), "first_mean"] == pytest.approx(0.1)
    assert found.loc[("K = 5, round 32", "partial", "own"), "first_mean"] == pytest.approx(1.0)
    assert found.loc[("K = 5, round 32", "surgical", "pooled"), "difference"] == pytest.approx(0.01)
    assert set(tables["missing-rates"]["row"]) == {f"K = {k}, rate {r}" for k in (5, 10) for r in ("0.1", "1")}


def test_only_the_tries_that_a_draw_chose_count_and_personal_heads_have_their_own_mean(tmp_path):
    rows = []
    for seed in range(4):
        rows.append(row(tmp_path, "methods", "fedavg", seed, 0.7, 0.7, stage="chosen"))
        rows.append(row(tmp_path, "methods", "scaffold", seed, 0.8 + NOISE[0, seed], 0.7, stage="chosen"))
        rows.append(row(tmp_path, "methods", "scaffold", seed, 0.1, 0.1, stage="try", rate=1.0))
        own = {"test/federation/auroc_own_macro": 0.75 + NOISE[1, seed]}
        own["test/federation/auroc_own_client_mean_macro"] = 0.9
        directory = measured_run(tmp_path / f"heads-{seed}", own)
        rows.append({"plan": "methods", "stage": "chosen", "case": "heads", "seed": seed, "directory": directory})
    rows += [row(tmp_path, "methods", "pooled", seed, 0.75, 0.75, stage="chosen") for seed in range(4)]
    found = TABLES.make(pd.DataFrame(rows)).tables["methods"].set_index(["first", "auroc"])
    assert ("pooled", "own") not in found.index  # it has one client
    assert found.loc[("scaffold", "pooled"), "difference"] == pytest.approx(0.1, abs=0.01)
    assert found.loc[("heads", "own"), "first_mean"] == pytest.approx(0.9)


def test_the_compositional_family_is_compared_in_four_settings_pooled(tmp_path):
    rows = []
    for setting in ("10", "1", "sampled", "after"):
        for case in ("scgdam", "in-place", "coda", "sgdam", "sgdm", "sgdm-rl"):
            for seed in range(DRAWS):
                behind = 0.02 if (case, setting) == ("coda", "1") else 0.0
                value = 0.8 - behind + NOISE[0, seed] * len(case)
                rows.append(row(tmp_path, "compositional", f"{case}-{setting}", seed, value, 0.5, stage="chosen"))
    found = TABLES.make(pd.DataFrame(rows)).tables["compositional"].set_index(["row", "first", "second"])
    assert len(found) == 4 * 6
    assert set(found["auroc"]) == {"pooled"}
    assert list(found[found["claimed"]].index) == [("1% positive", "LocalSCGDAM", "CoDA")]
    assert ("10%, after cross-entropy", "in place", "LocalSGDM") in found.index


def test_two_draws_are_too_few(tmp_path):
    with refused(ConfigError, "--seeds", "at least 3 draws", "found 2"):
        TABLES.make(of_windows(tmp_path, draws=2))
