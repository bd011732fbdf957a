"""``fedlit evaluate`` from the command line to its files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from evaluated import drawn, evaluated, run_of, where
from matplotlib.figure import Figure
from refusals import Cli, refused
from scipy.special import expit
from sklearn.metrics import average_precision_score, roc_auc_score

from fedlit.core.errors import ConfigError
from fedlit.predictions.table import Predictions, read
from fedlit.reports.compare.page import Chart
from fedlit.reports.compare.styles import styles
from fedlit.reports.evaluation import figures
from fedlit.reports.evaluation.evaluation import Evaluation
from fedlit.reports.evaluation.tables import tables, verdict


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of a method."""
    folder = tmp_path_factory.mktemp("evaluated") / "runs"
    for seed in (0, 1, 2):
        run_of(folder / f"seed-{seed}", drawn(7, seed), seed, drawn(8, seed, 500, "probability"))
    return folder


@pytest.fixture(scope="module")
def evaluation(runs: Path) -> Evaluation:
    """The evaluation of the three seeds, with thresholds of each site."""
    return evaluated(runs, points=[{"at": "sensitivity 0.8", True: "val/each"}], draws=200)


def test_values_are_means_over_seeds(runs: Path, evaluation: Evaluation):
    parts = [read(runs / f"seed-{seed}" / "predictions" / "federation.parquet") for seed in (0, 1, 2)]
    rows = parts[0].groups["sex"] == "F"
    for measure, oracle in (("auroc", roc_auc_score), ("auprc", average_precision_score)):
        expected = [oracle(part.labels[rows, 1], part.scores[rows, 1]) for part in parts]
        (found,) = where(evaluation.estimates, group="F", name="Nodule", measure=measure).to_dict("records")
        assert found["value"] == pytest.approx(np.mean(expected))
        assert found["sd_over_seeds"] == pytest.approx(np.std(expected, ddof=1))
        assert found["low"] < found["value"] < found["high"]
        assert found["n_pos"] == int(parts[0].labels[rows, 1].sum())


def test_the_planted_gap_is_found_and_no_other(evaluation: Evaluation):
    gaps = evaluation.gaps
    claimed = gaps[gaps["beyond_noise"]]
    assert set(claimed["class"]) == {"Nodule"}
    assert "auroc" in set(claimed["measure"])
    assert (gaps["p_holm"] >= gaps["p"]).all()
    assert (gaps["p"] >= gaps["p_images"]).all()
    assert "AUROC of Nodule, sex" in verdict(evaluation)


def test_thresholds_are_carried_from_site_to_site(runs: Path, evaluation: Evaluation):
    points = where(evaluation.points, measure="sensitivity", name="Effusion", by="client")
    assert set(zip(points["chosen_on"], points["group"], strict=True)) == {
        (source, used) for source in ("federation", "north", "south", "west") for used in ("north", "south", "west")
    }
    rates = []
    for seed in (0, 1, 2):
        val = read(runs / f"seed-{seed}" / "probabilities" / "federation_val.parquet")
        tested = read(runs / f"seed-{seed}" / "predictions" / "federation.parquet")
        ours = np.sort(val.scores[(val.clients == "west") & (val.labels[:, 0] == 1).numpy(), 0].numpy())
        threshold = ours[len(ours) - int(np.ceil(0.8 * len(ours)))]
        theirs = expit(tested.scores[(tested.clients == "north") & (tested.labels[:, 0] == 1).numpy(), 0].numpy())
        rates.append((theirs >= threshold - 1e-6).mean())
    (found,) = where(points, chosen_on="west", group="north")["value"]
    assert found == pytest.approx(np.mean(rates))
    own = points[points["chosen_on"] == points["group"]].set_index("group")["value"]
    assert found < own["north"] - 0.1  # a threshold of higher scores misses positives elsewhere


def test_the_report_has_tables_and_no_script(
    runs: Path, tmp_path: Path, fedlit_cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedlit.reports.evaluation.figures.charts", lambda evaluation: {})  # they take seconds
    out = fedlit_cli(
        f"evaluate {runs / 'seed-0'} --by sex --draws 100 --output {tmp_path} "
        "--threshold '{class: Nodule, at: specificity 0.9, on: val/each}'"
    ).succeeded()
    assert "trainings were not varied" in " ".join(out.split())
    page = (tmp_path / "report.html").read_text()
    for words in ("Operating points", "chosen on", "Gaps beyond", "Holm", "is beyond noise if", "one training"):
        assert words in page
    assert "<script" not in page
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "estimates.csv", "gaps.csv", "points.csv"}
    assert set(pd.read_csv(tmp_path / "points.csv")["class"]) == {"Nodule"}


def test_figures_are_added_to_the_run_in_mlflow_and_a_server_that_is_down_is_a_warning(
    tmp_path: Path, fedlit_cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    drawn_charts = {"groups": [Chart(name, Figure(), "", "") for name in ("pr_sex", "roc_sex", *"abcd")]}
    monkeypatch.setattr("fedlit.reports.evaluation.figures.charts", lambda evaluation: drawn_charts)
    run, added = run_of(tmp_path / "run", drawn(7)), []
    (run / "mlflow_run.json").write_text('{"run_id": "abc", "tracking_uri": "http://HOST"}')
    for reason, line in ((None, "evaluation/ of 1 run"), ("connection refused", "did not take the figures of run abc")):
        monkeypatch.setattr(
            "fedlit.reports.evaluation.report.add_files", lambda *given, reason=reason: added.append(given) or reason
        )
        out = fedlit_cli(f"evaluate {run} --draws 100 --output {tmp_path / 'out'}").succeeded()
        assert line in out
        assert (reason or "") in out
    uri, run_id, files, folder = added[0]
    assert (uri, run_id, folder) == ("http://HOST", "abc", "evaluation")
    assert [file.name for file in files] == ["roc_sex.png", "a.png", "b.png", "c.png"]


@pytest.mark.slow
def test_the_report_has_figures(runs: Path, tmp_path: Path, fedlit_cli: Cli):
    fedlit_cli(f"evaluate {runs} --draws 100 --output {tmp_path}").succeeded()
    figures = [f"{name}.{kind}" for name in ("reliability", "decision", "roc_sex", "pr_sex") for kind in ("svg", "pdf")]
    assert {path.name for path in tmp_path.iterdir()} == {*figures, "report.html", "estimates.csv", "gaps.csv"}
    page = (tmp_path / "report.html").read_text()
    assert page.count('role="img"') == 4
    assert "http://" not in page.replace("http://www.w3.org", "")


def few(found: Predictions) -> Predictions:
    """A test set with two women who have a nodule."""
    women = np.flatnonzero((found.groups["sex"] == "F") & (found.labels[:, 1].numpy() == 1))
    kept = np.setdiff1d(np.arange(len(found)), women[2:])
    return found.take(kept)


def test_a_group_with_two_positive_patients_has_no_curve(tmp_path: Path):
    images = evaluated(run_of(tmp_path / "run", few(drawn(7)))).sets[0]
    rows = {name: images.groups["sex"] == name for name in ("F", "M")}
    looks = styles(list(rows))
    for column, groups in ((0, {"F", "M"}), (1, {"M"})):
        axes = Figure().subplots()
        figures._roc(axes, images, column, rows, looks)
        assert {name for name in rows for line in axes.lines if line.get_color() == looks[name].colour} == groups


def test_few_patients_have_neither_interval_nor_claim(tmp_path: Path):
    found = evaluated(run_of(tmp_path / "run", few(drawn(7))))
    estimates = where(found.estimates, name="Nodule")
    assert where(estimates, group="F")["low"].isna().all()
    assert where(found.gaps, name="Nodule")["p"].isna().all()
    assert any("neither interval nor claim" in note for note in found.notes)
    assert where(estimates, group="M", measure="auroc")["low"].notna().all()


def test_a_gap_without_variation_is_not_said_to_lack_patients(tmp_path: Path):
    found = drawn(7)
    found.scores[:, 0] += 20 * found.labels[:, 0]  # AUROC is 1 in every draw
    evaluation = evaluated(run_of(tmp_path / "run", found))
    assert where(evaluation.gaps, name="Effusion", measure="auroc")["p"].isna().all()
    assert "no variation" in verdict(evaluation)


@pytest.mark.parametrize(
    ("point", "mistake"),
    [
        ({"at": "sensitivity 0.9", "on": "test"}, (ConfigError, "--threshold: on:", "'test'")),
        ({"class": "Mas", "on": "val"}, (ConfigError, "--threshold: class:", "label/Mas")),
        ({"on": "val/east"}, (ConfigError, "--threshold: on:", "'east'", "federation_val.parquet")),
        ({"at": "recall 0.9"}, (ConfigError, "--threshold: at:", "recall 0.9")),
        ({"a": 1}, (ConfigError, "--threshold", "'a'")),
        ("sensitivity 0.9", (ConfigError, "--threshold", "sensitivity 0.9")),
    ],
)
def test_a_threshold_that_cannot_be_chosen_names_its_key(point: object, mistake: Sequence[str], runs: Path):
    with refused(*mistake):
        evaluated(runs / "seed-0", points=[point])


AGES = {"age": np.arange(1200).astype(str)}


@pytest.mark.parametrize(
    ("changes", "options", "mistake"),
    [
        ({}, {"test_set": "nih"}, (ConfigError, "'nih'", "federation")),
        ({"groups": {}}, {"by": ("sex",)}, (ConfigError, "federation.parquet: column group/sex")),
        ({"groups": AGES}, {}, (ConfigError, "federation.parquet: column group/age", "1200")),
        ({"kind": "probability"}, {}, (ConfigError, "federation.parquet: column score/Effusion")),
        ({}, {"points": [{}]}, (ConfigError, "probabilities/federation_val.parquet")),
    ],
)
def test_mistakes_name_the_file_and_the_column(changes: dict, options: dict, mistake: Sequence[str], tmp_path: Path):
    run_of(tmp_path / "run", replace(drawn(7), **changes))
    with refused(*mistake):
        evaluated(tmp_path / "run", **options)


def test_thresholds_of_another_round_are_refused(tmp_path: Path):
    run_of(tmp_path / "run", drawn(7), 0, replace(drawn(8, 0, 500), round=2))
    with refused(ConfigError, "federation_val.parquet", "after 3 rounds", "after 2 rounds"):
        evaluated(tmp_path / "run", points=[{}])


IMAGES, LABELS = drawn(7, 1).images, drawn(7, 1).labels


@pytest.mark.parametrize(
    ("changes", "model", "mistake"),
    [
        ({"images": np.char.add("x", IMAGES)}, {}, (ConfigError, "column image", "a/predictions")),
        ({"labels": 1 - LABELS}, {}, (ConfigError, "b/predictions/federation.parquet: column label")),
        ({}, {"backbone": "another"}, (ConfigError, "found 2 methods")),
    ],
)
def test_runs_on_other_data_or_of_other_methods_are_refused(
    changes: dict, model: dict, mistake: Sequence[str], tmp_path: Path
):
    run_of(tmp_path / "a", drawn(7))
    run_of(tmp_path / "b", replace(drawn(7, 1), **changes), 1, **model)
    with refused(*mistake):
        evaluated(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("option", ["--risk 2", "--draws 99", "--sensitivity 0"])
def test_options_out_of_range_are_refused(option: str, runs: Path, tmp_path: Path, fedlit_cli: Cli):
    fedlit_cli(f"evaluate {runs} {option} --output {tmp_path / 'out'}").refused(option.partition(" ")[0], code=2)
    assert not (tmp_path / "out").exists()


def test_a_class_that_a_site_does_not_label_is_named(tmp_path: Path):
    tested, validation = drawn(7), drawn(8, 0, 500)
    for part in (tested, validation):
        part.labels[part.clients == "south", 1] = torch.nan
    found = evaluated(run_of(tmp_path / "run", tested, 0, validation), points=[{"on": "val/each"}])
    text = " ".join(found.notes)
    assert (
        "federation_val.parquet: no positive image, so no threshold for sensitivity 0.9: south: label/Nodule." in text
    )
    assert "without negative ones, so there are no values: client south: label/Nodule." in text
    points = where(found.points, name="Nodule")
    assert "south" not in {*points["chosen_on"], *points["group"]}


def test_a_class_that_is_asked_for_twice_has_one_threshold(runs: Path):
    found = evaluated(
        runs / "seed-0", points=[{"class": "Nodule", "on": "val"}, {"on": "val/each"}, {"on": "val/west"}]
    )
    names = ["class", "chosen_on", "at", "by", "group", "measure"]
    assert not found.points.duplicated(names).any()
    matrix = tables(found)["points"][-1]
    assert matrix.head == ("class", "chosen for", "chosen on", "north", "south", "west")
    rows = {row[2]: row[3:] for row in matrix.rows if row[0] == "Nodule"}
    assert list(rows) == ["federation", "north", "south", "west"]
    for source, cells in rows.items():
        used = where(found.points, name="Nodule")
        used = used[(used["chosen_on"] == source) & (used["group"] == "south")].set_index("measure")["value"]
        assert cells[1] == f"{used['sensitivity']:.3f} / {used['specificity']:.3f}"


def test_unknown_groups_and_lone_values_are_named(tmp_path: Path):
    tested = drawn(7)
    sex = np.where(np.arange(len(tested)) < 100, "", tested.groups["sex"])
    groups = {"sex": sex, "view": np.full(len(tested), "PA")}
    found = evaluated(run_of(tmp_path / "run", replace(tested, groups=groups)))
    text = " ".join(found.notes)
    assert "column group/sex: 100 of 1,200 images have no value" in text
    assert "column group/view: all images have the value 'PA'" in text
    assert set(found.gaps["by"]) == {"sex"}


def test_scores_of_an_auc_loss_are_no_probabilities(tmp_path: Path):
    run = run_of(tmp_path / "run", drawn(7), objective={"class_path": "fedlit.objectives.AUCSaddle"})
    assert any("they are not probabilities" in note for note in evaluated(run).notes)
