"""What a comparison may not claim: of a few patients, of what nobody could learn, of one seed, of other settings."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from past_runs import CLASSES, config, predictions, write_run
from refusals import Cli

from fedlit.metrics.claim import holm
from fedlit.metrics.intervals import MIN_PATIENTS
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.comparison import Comparison, compare_runs
from fedlit.reports.compare.past_run import PastRun

RARE = "Mass"


def rare(strength: float, seed: int, patients: int, images: int = 3, **changed: object) -> Predictions:
    """A test set of 150 patients with two images each, in which Mass has so many positive patients."""
    found = predictions(strength, seed, 300, per_patient=2)
    labels = found.labels.clone()
    labels[:, 1] = 0
    labels[: max(images, patients) : 1, 1] = 1
    people = found.patients.astype("<U9")
    people[:images] = [f"rare-{n % patients}" for n in range(images)]
    scores = found.scores.clone()
    scores[:, 1] = torch.tensor(np.random.default_rng(seed).normal(size=300)).float() + strength * 5 * labels[:, 1]
    return replace(found, labels=labels, scores=scores, patients=people, **changed)


def compared(folder: Path, sets: Mapping[str, list[Predictions]], **options: object) -> Comparison:
    runs = []
    for method, found in sets.items():
        for seed, each in enumerate(found):
            runs.append(PastRun.read(write_run(folder / f"{method}-{seed}", each, config((method,), seed))))
    return compare_runs(runs, draws=200, **options)


def row(comparison: Comparison, name: str, method: str = "Scaffold") -> pd.Series:
    numbers = comparison.statistics
    both = numbers.auroc_table().query("method == @method").set_index("class").add_prefix("of_")
    return numbers.differences_table().set_index("class").join(both).loc[name]


def test_three_images_of_one_patient_have_an_auroc_and_nothing_else(tmp_path: Path) -> None:
    sets = {"FedAvg": [rare(0.1, s, 1) for s in (0, 1)], "Scaffold": [rare(2.0, s, 1) for s in (2, 3)]}
    comparison = compared(tmp_path, sets)
    found = row(comparison, RARE)
    assert (found["of_n_pos"], found["of_patients_pos"]) == (3, 1)
    assert found["of_auroc"] > 0.9
    assert found[["low", "high", "p_images", "p", "p_holm", "p_seeds", "of_low", "of_high"]].isna().all()
    assert found["stars"] == "-"
    assert not found["of_in_mean"]
    (against,) = comparison.statistics.against
    assert RARE not in against.verdict(comparison.statistics.shared.classes)
    assert comparison.statistics.support.macro_name == "mean of 2 of 3 classes"
    (note,) = [note for note in comparison.notes if "Fewer than 10" in note]
    assert "Mass (1 and 149)" in note
    left = comparison.statistics.differences_table().set_index("class").loc[["Effusion", "Nodule"]]
    np.testing.assert_allclose(left["p_holm"], holm(left["p"].tolist()))


@pytest.mark.parametrize("patients", [MIN_PATIENTS - 1, MIN_PATIENTS])
def test_the_bound_is_of_patients_and_not_of_images(patients: int, tmp_path: Path) -> None:
    strengths = (("FedAvg", 0.1), ("Scaffold", 1.0))
    sets = {name: [rare(s, seed, patients, images=40) for seed in (0, 1)] for name, s in strengths}
    found = row(compared(tmp_path, sets), RARE)
    assert found["of_patients_pos"] == patients
    assert bool(np.isnan(found["p"])) == (patients < MIN_PATIENTS)
    assert found["of_in_mean"] == (patients >= MIN_PATIENTS)


def test_images_are_counted_where_patients_are_unknown_and_that_is_said(tmp_path: Path) -> None:
    nobody = np.full(300, "")
    strengths = (("FedAvg", 0.1), ("Scaffold", 1.0))
    sets = {name: [replace(rare(s, seed, 1), patients=nobody) for seed in (0, 1)] for name, s in strengths}
    comparison = compared(tmp_path, sets)
    found = row(comparison, RARE)
    assert found["of_n_pos"] == 3
    assert pd.isna(found["of_patients_pos"])
    assert np.isnan(found["p"])
    assert any("images are counted instead and taken as independent" in note for note in comparison.notes)
    assert any("Fewer than 10 positive or negative images: Mass (3 and 297)" in note for note in comparison.notes)


def test_a_class_that_nobody_could_learn_is_in_no_mean_and_no_test(tmp_path: Path) -> None:
    sets = {
        name: [rare(s, seed, 40, 40, trained_positives=(9, 0, 9)) for seed in (0, 1)]
        for name, s in (("FedAvg", 0.1), ("Scaffold", 1.0))
    }
    comparison = compared(tmp_path, sets)
    found = row(comparison, RARE)
    assert found["of_auroc"] > 0.9
    assert found[["p", "p_holm", "low", "of_low"]].isna().all()
    assert not found["of_in_mean"]
    macro = row(comparison, "mean of 2 of 3 classes")
    others = comparison.statistics.auroc_table().query("method == 'Scaffold' and `class` in ['Effusion', 'Nodule']")
    np.testing.assert_allclose(macro["of_auroc"], others["auroc"].mean())
    assert any(note.startswith("Mass: no client had a positive training image in any run") for note in comparison.notes)


def test_runs_that_do_not_tell_what_was_trained_on_are_named(tmp_path: Path) -> None:
    sets = {"FedAvg": [replace(rare(0.1, 0, 40, 40), trained_positives=None)], "Scaffold": [rare(1.0, 1, 40, 40)]}
    comparison = compared(tmp_path, sets)
    assert not np.isnan(row(comparison, RARE)["p_images"])
    assert any(
        note.startswith("FedAvg: the predictions lack the numbers of positive training images")
        for note in comparison.notes
    )


def test_without_a_class_that_can_be_judged_the_mean_is_a_number_alone(tmp_path: Path) -> None:
    few = {n: [predictions(s, k, 20) for k in (0, 1)] for n, s in (("FedAvg", 0.1), ("Scaffold", 4.0))}
    comparison = compared(tmp_path, few)
    macro = row(comparison, "macro")
    assert macro["of_auroc"] == pytest.approx(macro["of_auroc"])
    assert macro[["p", "low", "high", "of_low"]].isna().all()
    (against,) = comparison.statistics.against
    assert "it supports no claim" in against.verdict(CLASSES)


def test_one_seed_has_no_stars(tmp_path: Path) -> None:
    one, two = predictions(0.2, 0, 400), [predictions(3.0, seed, 400) for seed in (1, 2)]
    comparison = compared(tmp_path, {"FedAvg": [one], "Scaffold": two})
    table = comparison.statistics.differences_table()
    assert (table["p_images"] < 0.001).all()
    assert table["p_holm"].isna().all()
    assert set(table["stars"]) == {"-"}
    (against,) = comparison.statistics.against
    assert "one seed says nothing about seed noise" in against.verdict(CLASSES)
    assert not any(name in against.verdict(CLASSES) for name in CLASSES)


@pytest.mark.slow
def test_the_terminal_the_page_and_the_tables_agree(tmp_path: Path, fedlit_cli: Cli, monkeypatch, blank_charts) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, strength in (("FedAvg", 0.1), ("Scaffold", 2.0)):
        write_run(tmp_path / "runs" / name, rare(strength, 0, 1), config((name,), 0))
    out = fedlit_cli(f"compare {tmp_path / 'runs'} --draws 100 --output {tmp_path / 'out'}").succeeded()
    lines = out.splitlines()
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    start = lines.index("Mass: 3 positive (1), 297 negative (149)")
    assert re.fullmatch(r" +Scaffold +[01]\.\d{3} +- +- +\+0\.\d{3} +- +- +-", lines[start + 2])
    assert "*" not in re.sub(r"\*\.05 \*\*\.01 \*\*\*\.001", "", out)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td>3 (1)</td><td>297 (149)</td>" in page
    assert "positives and negatives are images (patients)" in page
    assert "fewer than 10 positive or negative" in page
    assert re.findall(r"<td[^>]*>\*+</td>", page) == []
    table = pd.read_csv(tmp_path / "out" / "differences.csv").set_index("class")
    assert set(table["stars"]) <= {"-", "ns"}
    assert np.isnan(table.loc["Mass", "p"])


def noted(tmp_path: Path, *settings: dict, seeds: tuple[int, ...] = (0, 0)) -> str:
    runs = []
    for number, (each, seed) in enumerate(zip(settings, seeds, strict=True)):
        runs.append(PastRun.read(write_run(tmp_path / str(number), None, each | {"seed": seed})))
    return " ".join(compare_runs(runs).notes)


ADAM = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}}
SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}


class TestOtherThingsThatDiffer:
    def test_an_optimizer_and_a_budget_beside_the_method(self, tmp_path: Path) -> None:
        said = noted(tmp_path, config(rounds=3, optimizer=SGD), config(("FedProx",), rounds=9, optimizer=ADAM))
        assert "FedProx and FedAvg differ in more than the method" in said
        assert "optimizer: model.optimizer (Adam and SGD), model.optimizer.lr (0.001 and 0.1)" in said
        assert "budget: federation.rounds (9 and 3)" in said

    def test_the_method_alone_is_no_reason_to_warn(self, tmp_path: Path) -> None:
        objective = {"class_path": "fedlit.objectives.AUCSaddle"}
        assert "differ in more" not in noted(tmp_path, config(), config(("FedProx",), objective=objective))

    def test_one_thing_that_differs_is_the_method(self, tmp_path: Path) -> None:
        assert "differ in more" not in noted(tmp_path, config(rounds=3), config(rounds=9))

    def test_other_seeds(self, tmp_path: Path) -> None:
        said = noted(tmp_path, config(), config(("FedProx",)), seeds=(0, 7))
        assert "FedProx and FedAvg have different seeds (7 and 0)" in said

    @pytest.mark.parametrize("name", ["Scaffold", "CODASCA"])
    def test_control_variates_under_adam(self, name: str, tmp_path: Path) -> None:
        said = noted(tmp_path, config(optimizer=ADAM), config((name,), optimizer=ADAM))
        assert f"{name}: {name} corrects the gradients by control variates, and Adam then rescales" in said

    def test_no_control_variates_or_no_adam(self, tmp_path: Path) -> None:
        assert "control variates" not in noted(tmp_path, config(optimizer=ADAM), config(("Scaffold",), optimizer=SGD))


def test_weights_that_an_aggregator_states_are_shown(tmp_path: Path) -> None:
    found = predictions(1.0)
    comparison = compared(tmp_path, {"FedAvg": [found], "PersonalHeads": [found]})
    assert [m.settings["federation.weights"] for m in comparison.methods] == ["examples", "uniform"]
    assert any("client weights: federation.weights (uniform and examples)" in note for note in comparison.notes)


@pytest.mark.parametrize(
    ("path", "recorded", "differ"),
    [
        ("my_project.mine.Trimmed", "examples", False),
        ("my_project.mine.Trimmed", "uniform", True),
        (None, "uniform", True),
        (None, "", False),
    ],
    ids=["same", "other", "empty list", "older"],
)
def test_client_weights_of_an_own_aggregator_are_those_of_its_run(
    path: str | None, recorded: str, differ: bool, tmp_path: Path
) -> None:
    own, found = config(()), predictions(1.0)
    own["federation"]["aggregators"] = [{"class_path": path}] if path else []
    first = PastRun.read(write_run(tmp_path / "FedAvg", found, config(("FedAvg",))))
    other = PastRun.read(write_run(tmp_path / "own", found, own, client_weights=recorded))
    comparison = compare_runs([first, other], draws=100)
    assert any("client weights" in note for note in comparison.notes) == differ
    assert comparison.methods[1].settings["federation.weights"] == (recorded or "examples")


def test_runs_of_one_draw_and_of_many_are_other_methods(tmp_path: Path) -> None:
    runs = []
    for name, drawn in (("one", (0, 0)), ("own", (0, 1))):
        for seed, draw in enumerate(drawn):
            settings = config(("FedAvg",), seed, note=name) | {"data": {"class_path": "D", "init_args": {"seed": draw}}}
            runs.append(PastRun.read(write_run(tmp_path / f"{name}-{seed}", predictions(1.0, seed), settings)))
    one, own = compare_runs(runs, draws=100).methods
    assert [method.settings["data.seed"] for method in (one, own)] == ["0", "that of the run"]
    assert [method.seeds for method in (one, own)] == [(0, 1), (0, 1)]
