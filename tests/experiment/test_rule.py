"""The rule of a tuning: the classes that count, and at which evaluations."""

from pathlib import Path

import pytest

from fedlit.experiment.rule import Rule
from fedlit.tracking.run import Result

CLASSES = {"Edema": (30, 400), "Mass/Nodule": (25, 25), "Rare": (24, 400), "Common": (400, 3), "Absent": (0, 500)}


def finished(folder: Path, scores: dict[str, list[float]], counts: dict | None = None, patients: bool = True):
    """A run with the AUROC of each class in evaluations after rounds 2, 4, ...; the best model is that of round 4."""
    folder.mkdir(parents=True)
    rows = [f"{2 * place},{key},{value}" for key, values in scores.items() for place, value in enumerate(values, 1)]
    for name, (positives, negatives) in (counts or {}).items() if not patients else ():
        rows += [f"2,val/n_pos/{name},{positives}", f"2,val/n_neg/{name},{negatives}"]
    (folder / "metrics.csv").write_text("\n".join(["step,key,value", *rows]) + "\n")
    if counts is not None and patients:
        # Twice as many images as patients.
        lines = [f"{name},{2 * pos},{2 * neg},{pos},{neg}" for name, (pos, neg) in counts.items()]
        head = "class,positives,negatives,positive_patients,negative_patients"
        (folder / "validation.csv").write_text("\n".join([head, *lines]) + "\n")
    Result(8, 4, 1.0).write(folder)
    return folder


SCORES = {
    "val/auroc_macro": [0.1, 0.2, 0.3, 0.4],
    "val/auroc/Edema": [0.5, 0.6, 0.7, 0.9],
    "val/auroc/Mass_Nodule": [0.5, 0.8, 0.5, 0.6],
    "val/auroc/Rare": [1.0, 1.0, 1.0, 1.0],
}


@pytest.mark.parametrize("at", ["best", "last"])
def test_classes_with_few_patients_do_not_count_and_are_named(tmp_path: Path, at: str):
    runs = [finished(tmp_path / "a", SCORES, CLASSES)]
    rule = Rule(at=at)
    of_edema, of_mass = {"best": (0.6, 0.8), "last": ((0.6 + 0.7 + 0.9) / 3, (0.8 + 0.5 + 0.6) / 3)}[at]
    assert rule.scores(runs, 1)[:, 0] == pytest.approx([(of_edema + of_mass) / 2])
    assert rule.evidence(runs).classes == ("Edema", "Mass/Nodule")
    said = rule.evidence(runs).note
    assert "25 positive or negative patients" in said
    assert "Rare (24 and 400), Common (400 and 3)." in said
    assert "Absent" not in said


def test_a_class_counts_if_every_seed_has_enough_of_it(tmp_path: Path):
    fewer = CLASSES | {"Edema": (30, 20)}
    runs = [finished(tmp_path / name, SCORES, counts) for name, counts in (("a", CLASSES), ("b", fewer))]
    runs.append(tmp_path / "failed")
    rule = Rule(seeds=[1, 2])
    assert rule.evidence(runs).classes == ("Mass/Nodule",)
    assert "Edema (30 and 20)" in rule.evidence(runs).note
    assert rule.scores(runs[:2], 2)[:, 0] == pytest.approx([0.8])


def test_without_a_class_that_has_enough_all_count_with_a_warning(tmp_path: Path):
    runs = [finished(tmp_path / "a", SCORES, {"Edema": (9, 90), "Rare": (2, 90)})]
    assert Rule().scores(runs, 1)[:, 0] == pytest.approx([0.2])
    said = Rule().evidence(runs).note
    assert said.startswith("warning: ")
    assert "Edema (9 and 90), Rare (2 and 90)" in said


def test_images_count_if_patients_are_unknown(tmp_path: Path):
    """At sites there is no table of patients, but every evaluation logs the images."""
    counts = {"Edema": (25, 25), "Mass_Nodule": (24, 99)}
    runs = [finished(tmp_path / "a", SCORES, counts, patients=False)]
    assert Rule().evidence(runs).classes == ("Edema",)
    assert "images: Mass_Nodule (24 and 99)." in Rule().evidence(runs).note
    (tmp_path / "a/validation.csv").write_text(
        "class,positives,negatives,positive_patients,negative_patients\nEdema,3,30,,\nMass/Nodule,30,30,,\n"
    )
    assert Rule().evidence(runs).classes == ("Mass/Nodule",)


@pytest.mark.parametrize("metric", ["val/loss", "val/auroc/Rare", "val/auroc_shared"])
def test_another_metric_is_taken_as_it_is(tmp_path: Path, metric: str):
    runs = [finished(tmp_path / "a", SCORES | {metric: [1.0, 3.0, 5.0, 7.0]}, CLASSES)]
    assert Rule(metric).scores(runs, 1)[:, 0] == [3.0]
    assert Rule(metric, at="last").scores(runs, 1)[:, 0] == [5.0]
    assert not Rule(metric).evidence(runs).note


def test_if_all_classes_have_enough_the_mean_is_the_logged_one(tmp_path: Path):
    runs = [finished(tmp_path / "a", SCORES, {name: (25, 25) for name in ("Edema", "Mass/Nodule", "Rare")})]
    assert Rule().scores(runs, 1)[:, 0] == [0.2]
    assert not Rule().evidence(runs).note
