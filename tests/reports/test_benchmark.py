"""FLamby's benchmark: its plan, and what the report makes of made-up predictions beside the published numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from past_runs import scored
from sklearn.metrics import balanced_accuracy_score

from fedlit.core.system.shipped import CONFIGS
from fedlit.data.flamby.isic import CENTRES, CLASSES
from fedlit.experiment.grid import combinations_of
from fedlit.predictions.table import write
from fedlit.reports.reproductions.costs import Estimate
from fedlit.reports.reproductions.published import read_paper
from fedlit.reports.reproductions.report import tables_of
from fedlit.reports.reproductions.reproduction import Reproduction

TABLES = tables_of(CONFIGS / "flamby")

TESTS = {"cleveland": 104, "hungarian": 89, "switzerland": 16, "va": 45, "pooled-test": 254}


def predicted(folder: Path, name: str, right: dict[str, float]) -> None:
    """Predictions of which some are right, by site; half of the rows are positive."""
    scores, labels, sites = [], [], []
    for site, share in right.items():
        rows = TESTS[site]
        label = np.arange(rows) % 2
        said = np.where(np.arange(rows) < round(share * rows), label, 1 - label)
        scores, labels, sites = [*scores, *(2.0 * said - 1)], [*labels, *label], [*sites, *[site] * rows]
    both = (np.array(each)[:, None] for each in (scores, labels))
    found = scored(*both, ("Heart disease",), name=name, sites=np.array(sites))
    write(found, folder / "predictions" / f"{name}.parquet")


def published(method: str, start: int) -> dict[str, float]:
    table = read_paper(CONFIGS / "flamby").tables["Fed-Heart-Disease"]
    (row,) = (row for row in table.rows if row[:2] == (method, str(start)))
    return dict(zip(table.columns[2:], map(float, row[2:]), strict=True))


def made_up(folder: Path, shift: float = 0.0, served: bool = False) -> pd.DataFrame:
    """Runs of SCAFFOLD that are as good as the published ones; at switzerland better by a shift."""
    runs = []
    for start in (42, 43, 44, 45, 46):
        shares, run = published("SCAFFOLD", start), folder / str(start)
        shares["switzerland"] += shift
        predicted(run, "pooled-test", {"pooled-test": shares.pop("pooled-test")})
        sets = {name: {name: share} for name, share in shares.items()} if served else {"federation": shares}
        for name, each in sets.items():
            predicted(run, name, each)
        runs.append({"method": "SCAFFOLD", "start": start, "seed": 0, "directory": run})
    return pd.DataFrame(runs)


@pytest.fixture
def heart() -> Reproduction:
    return Reproduction("flamby-heart")


@pytest.mark.parametrize("served", [False, True], ids=["tests of clients", "tests of the server"])
def test_ours_and_the_published_numbers_are_one_table(heart, tmp_path, served):
    made = heart.report(made_up(tmp_path, served=served))
    lines = made.text.splitlines()
    assert lines[0] == "|  | cleveland | hungarian | switzerland | va | mean of hospitals | pooled-test |"
    ours, theirs = ([cell.split(" ± ") for cell in line.strip("| ").split(" | ")[1:]] for line in lines[2:4])
    assert theirs[0] == ["0.7269", "0.0187"]
    assert theirs[4] == ["0.6840", "0.0280"]
    np.testing.assert_allclose(np.array(ours, float), np.array(theirs, float), atol=1.1e-4)  # published to four digits
    assert "All our means are within one published standard deviation." in made.text
    assert "25 of 25 values, one per method, start and test set, equal the published ones" in made.text
    assert len(made.tables["values"]) == 5
    # A model whose scores are +1 and -1 alone: AUROC is the mean of both classes' shares.
    assert made.tables["auroc"]["va"].between(0.5, 0.75).all()


def test_what_is_out_of_the_published_spread_is_named(heart, tmp_path):
    text = heart.report(made_up(tmp_path, shift=0.125)).text
    assert (
        "more than one published standard deviation away: SCAFFOLD on switzerland, SCAFFOLD on mean of hospitals."
        in text
    )
    assert "20 of 25 values" in text
    assert "the largest difference is 0.1250" in text


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_balanced_accuracy_is_the_mean_recall_of_the_classes_that_are_there():
    generator = torch.Generator().manual_seed(0)
    scores, classes = torch.randn(50, 8, generator=generator), torch.randint(7, (50,), generator=generator)
    labels = torch.nn.functional.one_hot(classes, 8).float()
    assert TABLES.balanced_accuracy(scores, labels) == pytest.approx(balanced_accuracy_score(classes, scores.argmax(1)))
    assert TABLES.accuracy(torch.tensor([[0.0], [1.0], [-1.0]]), torch.tensor([[0.0], [0.0], [0.0]])) == pytest.approx(
        2 / 3
    )


def test_all_runs_can_be_planned_and_counted_without_data(tmp_path):
    """Of the five starts, one is planned."""
    made = Reproduction("flamby-heart", run_dir=tmp_path, dry_run=True)
    (whole,) = made.plans.values()
    assert len([*combinations_of(whole)]) == 4 * 5
    made.plans = {"heart": replace(whole, grid={"model.start": [43]})}
    (runs,) = made.plan().values()
    configs = {run.case: yaml.safe_load(run.config) for run in runs}
    assert len(configs) == 4
    for name, config in configs.items():
        assert config["model"]["init_args"]["start"] == int(name[-2:])
        assert config["data"]["init_args"]["pooled"] == name.startswith("pooled")
    estimate = Estimate(made.chosen.images, 0.001)
    costs = {run.case: estimate.cost(run) for run in runs}
    assert costs["fedprox-43"].steps == 4 * 15 * 100
    assert costs["pooled-training-43"].steps == 50 * 122  # 486 rows in batches of 4
    assert costs["fedavg-43"].step == "LogisticRegression, FedAvg, 4 rows of 13 features"
    assert {cost.cache for cost in costs.values()} == {None}
    assert {cost.clients for cost in costs.values()} == {1, 4}
    assert sum(cost.steps for cost in costs.values()) == 24100


def test_balanced_accuracy_of_isic_is_compared_in_the_mean_alone(tmp_path):
    """Without a test set of its own, pooled-test is all test images together."""
    labels = torch.eye(8).repeat(6, 1)
    scores = labels.clone()
    scores[:8] = scores[:8].roll(1, 0)  # the first centre is all wrong
    found = scored(scores, labels, CLASSES, sites=np.repeat(CENTRES, 8))
    write(found, tmp_path / "predictions" / "federation.parquet")
    runs = pd.DataFrame([{"method": "FedAvg", "seed": 42, "directory": tmp_path}])
    made = Reproduction("flamby-isic2019", root=tmp_path).report(runs)
    (values,) = made.tables["values"].to_dict("records")
    assert [values[name] for name in CENTRES] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert values["pooled-test"] == values["mean of hospitals"] == pytest.approx(5 / 6)
    assert "Each start has the initial weights" not in made.text
    assert "FedAvg on BCN" in made.text
