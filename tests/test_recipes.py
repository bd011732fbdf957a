"""The recipes: each command trains for a step, and each block of Python runs."""

import math
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from past_runs import config, predictions, write_run
from PIL import Image
from refusals import Cli
from test_docs import RECIPES, blocks, trained_recipes

from fedlit.models import ImageClassifier

SMALL = (
    "--data.images 60 --data.image_size 32 --data.hospitals 2 --model.backbone small_cnn --federation.workers 1 "
    "--fast_dev_run true"
)


def python(containing: str) -> str:
    (text,) = (block.text for block in blocks("python") if block.document == RECIPES and containing in block.text)
    return text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(Path(__file__).parent.parent / "configs")
    return tmp_path


@pytest.mark.parametrize("words", trained_recipes(), ids=" ".join)
def test_a_command_trains(words: list[str], folder: Path, fedlit_cli: Cli):
    torch.save(ImageClassifier(("Mass",), "small_cnn").body.state_dict(), "densenet121.pth")
    small = SMALL.replace("60", "600") if "configs/privacy/quickstart.yaml" in words else SMALL  # needs patients
    fedlit_cli(f"{shlex.join(words)} {small}").succeeded()


def test_the_aggregator_of_the_recipe_trains(folder: Path, monkeypatch: pytest.MonkeyPatch, fedlit_cli: Cli):
    (folder / "my_project").mkdir()
    (folder / "my_project/trusted.py").write_text(python("class Trusted"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_project", raising=False)  # of another test
    words = "--federation.aggregators+=my_project.trusted.Trusted --federation.aggregators.factors '{hospital-02: 0.5}'"
    document = (Path(__file__).parent.parent / RECIPES).read_text()
    assert " ".join(words.split()) in " ".join(document.split())
    fedlit_cli(f"fit --config configs/quickstart.yaml {words} {SMALL}").succeeded()


def test_a_metric_of_your_own_selects_the_best_model_and_has_intervals(folder: Path, fedlit_cli: Cli):
    names: dict = {}
    exec(compile(python("class Age"), RECIPES, "exec"), names)
    assert names["fitted"].metrics["val/mae"].is_monotonic_decreasing
    assert {"client/north/mae", "client/south/mae"} <= set(names["fitted"].metrics)
    exec(compile(python("federation.cases.csv"), RECIPES, "exec"), names)
    out = fedlit_cli("compare runs/ages").succeeded()
    assert "mae" in out
    fedlit_cli(f"card {names['fitted'].directory}").succeeded()
    card = (names["fitted"].directory / "model_card.md").read_text()
    (line,) = (line for line in card.splitlines() if "| mae | all |" in line)
    assert " to " in line


def test_folds_are_planned(folder: Path, fedlit_cli: Cli):
    rows = [(f"{i}.png", f"P{i // 2}", i % 2, ("north", "south")[i // 2 % 2]) for i in range(80)]
    pd.DataFrame(rows, columns=["File", "Patient", "Mass", "Site"]).to_csv("cases.csv", index=False)
    for name, *_ in rows:
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)).save(name)
    exec(compile(python("folds.csv"), RECIPES, "exec"), {})
    table = {"table": "cases.csv", "image": "File", "patient": "Patient", "site": "Site", "labels": ["Mass"]}
    data = {"class_path": "ImageTable", "init_args": table | {"image_size": 8}}
    model = {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}}
    Path("my.yaml").write_text(yaml.safe_dump({"data": data, "model": model, "federation": {"rounds": 1}}))
    (text,) = (block.text for block in blocks("yaml") if block.document == RECIPES)
    Path("folds.yaml").write_text(text)
    planned = fedlit_cli("sweep --config folds.yaml --dry_run true").succeeded()
    assert all(f"fold{number}" in planned for number in range(5))
    folds = pd.read_csv("folds.csv").melt("Patient", [f"fold{number}" for number in range(5)])
    assert (folds[folds["value"] == "test"].groupby("Patient")["variable"].nunique() == 1).all()


@pytest.mark.parametrize("containing", ["of_clients", "roc.svg"])
def test_python_of_a_run_reads_its_files(containing: str, folder: Path, capsys: pytest.CaptureFixture):
    metrics = {"client/north/auroc_macro": (0.5, 0.75), "client/north/auroc/Mass": (0.25, 0.3)}
    table = predictions(1.5, images=40)
    table.labels[0] = table.scores[0] = math.nan  # as of a finding that nobody looked for
    write_run(folder / "runs/quickstart/NAME", table, config(), metrics)
    exec(compile(python(containing), RECIPES, "exec"), {})
    if containing == "of_clients":
        assert "0.75" in (out := capsys.readouterr().out)
        assert "Mass" not in out
    else:
        assert "<svg" in Path("roc.svg").read_text()
