"""Files of ``fedlit predict``, which ``fedlit compare`` and ``fedlit evaluate`` take instead of runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evaluated import drawn, evaluated, run_of, where
from refusals import refused
from scipy.special import expit

from fedlit.core.errors import ConfigError
from fedlit.predictions.scoring import write_scores
from fedlit.predictions.table import Predictions, write
from fedlit.reports.compare.comparison import Comparison, compare_runs
from fedlit.reports.compare.methods import differences
from fedlit.reports.compare.runs import load_runs

PLACE = Path("probabilities")


def predicted(run: Path, found: Predictions, suffix: str = ".csv") -> Path:
    """A file as ``fedlit predict`` writes it for the test images of a run."""
    probable = replace(found, kind="probability", scores=found.scores.sigmoid())
    return write(probable, run / PLACE / f"federation_test{suffix}")


def compared(*files: Path) -> Comparison:
    return compare_runs(*load_runs([*map(str, files)], None, {}, "", Path()), draws=100)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_in_a_run_has_the_settings_and_the_seed_of_the_run(suffix: str, tmp_path: Path):
    runs, files = [], []
    for name, seed in (("resnet", 0), ("resnet", 1), ("vgg", 0)):
        found = drawn(7, seed)
        runs.append(run_of(tmp_path / f"{name}-{seed}", found, seed, backbone=name))
        files.append(predicted(runs[-1], found, suffix))
    ours, theirs = compared(*files), compared(*runs)
    assert [method.name for method in ours.methods] == [method.name for method in theirs.methods]
    assert [method.seeds for method in ours.methods] == [(0, 1), (0,)]
    assert list(differences(ours.methods).index) == ["model.backbone"]
    table = [each.statistics.auroc_table()["auroc"] for each in (ours, theirs)]
    np.testing.assert_allclose(*table, atol=1e-4)


def test_files_of_the_same_name_are_other_methods_unless_they_are_seeds(tmp_path: Path):
    files = [write(drawn(7, seed), tmp_path / name / "federation_test.csv") for seed, name in enumerate("ab")]
    methods = compared(*files).methods
    assert [method.name for method in methods] == [
        "federation_test, a/federation_test",
        "federation_test, b/federation_test",
    ]
    seeds = [write(drawn(7, seed), tmp_path / name / f"net,seed={seed}.csv") for seed, name in enumerate("ab")]
    (method,) = compared(*seeds).methods
    assert (method.name, method.seeds) == ("net", (0, 1))


def test_the_scores_of_a_folder_are_compared_with_a_run(tmp_path: Path):
    found = drawn(7, 1)
    folder, run = tmp_path / "images", run_of(tmp_path / "run", drawn(7))
    files = [folder / name for name in found.images]
    write_scores(tmp_path / "scores.csv", folder, files, found.scores.sigmoid().numpy(), found.classes)
    assert list(pd.read_csv(tmp_path / "scores.csv")) == ["image", "score/Effusion", "score/Nodule"]
    (change,) = compared(run, tmp_path / "scores.csv").statistics.against
    assert change.macro.p_images == change.macro.p_images
    with refused(ConfigError, tmp_path / "scores.csv", "label/CLASS"):
        evaluated(tmp_path / "scores.csv")


def test_files_are_evaluated_as_their_runs_are(tmp_path: Path):
    """Each of two runs has its own draw of the data."""
    tested = [drawn(10 + seed, seed) for seed in (0, 1)]
    runs = [run_of(tmp_path / str(seed), found, seed, draw=seed) for seed, found in enumerate(tested)]
    files = [predicted(run, found) for run, found in zip(runs, tested, strict=True)]
    ours, theirs = evaluated(*files), evaluated(*runs)
    assert ours.sets[0].draws == 2
    np.testing.assert_allclose(
        ours.estimates.select_dtypes("number"), theirs.estimates.select_dtypes("number"), atol=1e-3
    )
    assert set(ours.gaps["by"]) == {"sex"}
    with refused(ConfigError, files[0], "--threshold"):
        evaluated(*files, points=[{}])


def test_scores_of_any_scale_are_taken_as_logits(tmp_path: Path):
    found = drawn(7)
    evaluation = evaluated(write(found, tmp_path / "logits.csv"))
    assert any("taken as logits" in note for note in evaluation.notes)
    (brier,) = where(evaluation.estimates, by="all", measure="brier", name="Nodule")["value"]
    assert brier == pytest.approx(float(((expit(found.scores) - found.labels)[:, 1] ** 2).mean()), rel=1e-4)
