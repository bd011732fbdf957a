"""Metrics that modules log, in comparisons and cards: by method, seed, client and case, and between sites."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from past_runs import config, predictions, write_run
from refusals import Cli, refused
from scipy import stats
from test_card import write_trained

from fedlit.core.errors import ConfigError
from fedlit.reports.compare.comparison import Comparison, compare_runs
from fedlit.reports.compare.runs import load_runs
from fedlit.reports.compare.tables import spread_table

DICE = {"FedAvg": (0.70, 0.72, 0.74), "Scaffold": (0.80, 0.82, 0.81)}
SITES = {"north": 0.1, "south": 0.0, "east": -0.1}
SEGMENTED = "predictions/federation.cases.csv"


def segmented(folder: Path, cases: Sequence[str] = (), images: int = 20, **federation: object) -> Path:
    """Runs of two methods with three seeds, which log a Dice; those of the methods in ``cases`` have it by image."""
    rng = np.random.default_rng(0)
    hardness = rng.normal(0, 0.05, images)  # of an image, in all runs
    for name, values in DICE.items():
        for seed, value in enumerate(values):
            logged = {"dice": value, "dice_client_mean": value, "loss": 1.0, "loss_client_mean": 1.0}
            logged |= {f"dice_by_client/{site}": value + shift for site, shift in SITES.items()}
            metrics = {f"test/federation/{key}": (number,) for key, number in logged.items()}
            settings = config((name,), seed)
            settings["federation"] |= {"monitor": "val/dice", "monitor_mode": "max"} | federation
            run = write_run(folder / f"{name}-{seed}", None, settings, metrics | {"val/dice": (0.1, 0.2, value)})
            if name in cases:
                noise = hardness + rng.normal(0, 0.002, images)
                columns = {"image": range(images), "patient": [f"p{n // 2}" for n in range(images)]}
                columns |= {"client": ["north", "south"] * (images // 2), "dice": value + noise - noise.mean()}
                (run / "predictions").mkdir()
                pd.DataFrame(columns).to_csv(run / SEGMENTED, index=False)
    return folder


def comparison(folder: Path) -> Comparison:
    return compare_runs(load_runs([str(folder)], None, {}, "", folder)[0])


def test_a_logged_metric_has_its_spread_and_no_claim_without_cases(tmp_path: Path):
    found = comparison(segmented(tmp_path / "runs"))
    (dice,) = found.logged  # no loss beside a Dice
    ours, theirs = dice.methods[1], dice.methods[0]
    assert (dice.name, dice.best, theirs.change) == ("dice", "max", None)
    assert ours.value == pytest.approx(0.81)
    assert ours.sd == pytest.approx(np.std(DICE["Scaffold"], ddof=1))
    assert ours.change.value == pytest.approx(0.09)
    assert ours.change.p_seeds == pytest.approx(stats.ttest_ind(DICE["Scaffold"], DICE["FedAvg"]).pvalue)
    assert np.isnan([ours.interval.low, ours.change.interval.low, ours.change.p_images, ours.change.p_holm]).all()
    assert ours.change.stars == "-"
    assert found.metric == "val/dice"
    assert not any("no predictions" in note for note in found.notes)


def test_cases_give_intervals_over_patients_and_a_claim_for_both_noises(tmp_path: Path):
    found = comparison(segmented(tmp_path / "runs", cases=tuple(DICE)))
    (dice,) = found.logged
    ours = dice.methods[1]
    tables = [pd.read_csv(tmp_path / f"runs/Scaffold-{seed}" / SEGMENTED) for seed in range(3)]
    by_patient = pd.concat(tables).groupby("patient")["dice"].mean()
    t = stats.t.interval(0.95, len(by_patient) - 1, by_patient.mean(), stats.sem(by_patient))  # two images each
    assert (ours.interval.low, ours.interval.high) == pytest.approx(t)
    assert ours.change.claimed
    assert ours.change.p_images < 1e-3  # hardness of images is shared, and so no noise of the difference
    assert ours.change.p_holm == max(ours.change.p, ours.change.p_seeds)
    assert set(ours.clients) == {"north", "south"}
    assert ours.clients["south"][0] == pytest.approx(tables[0]["dice"][1::2].mean())


def test_cases_of_some_runs_or_of_few_patients_have_no_intervals_and_say_why(tmp_path: Path):
    found = comparison(segmented(tmp_path / "some", cases=("FedAvg",)))
    assert any("no table of cases" in note for note in found.notes)
    few = comparison(segmented(tmp_path / "few", cases=tuple(DICE), images=18))
    assert any("9 patients, too few" in note for note in few.notes)
    for each in (*found.logged, *few.logged):
        assert np.isnan(each.methods[1].interval.low)
        assert each.methods[1].change.stars == "-"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name,dice\na,0.5\n", "column image"),
        ("image,dice\na,0.5\na,0.6\n", "'a' twice"),
        ("image,dice\na,high\n", "column dice"),
    ],
)
def test_a_table_of_cases_that_cannot_be_read_is_named(text: str, named: str, tmp_path: Path):
    folder = segmented(tmp_path / "runs", cases=("FedAvg",))
    (folder / "FedAvg-0" / SEGMENTED).write_text(text)
    with refused(ConfigError, "FedAvg-0", "cases.csv", named):
        comparison(folder)


@pytest.mark.parametrize(("mode", "worst"), [("max", "east"), ("min", "north")])
def test_the_worst_site_and_the_spread_follow_the_direction_of_the_metric(mode: str, worst: str, tmp_path: Path):
    (between,) = comparison(segmented(tmp_path / "runs", monitor_mode=mode)).sites
    site, low, high, spread = between.extremes("FedAvg")
    assert site == worst
    assert sorted((low, high)) == pytest.approx([0.62, 0.82])
    assert spread == pytest.approx(0.1)


def test_without_a_direction_no_site_is_called_the_worst(tmp_path: Path):
    found = comparison(segmented(tmp_path / "runs"))
    (between,) = (replace(each, best=None) for each in found.sites)
    assert between.extremes("FedAvg")[0] == ""
    assert between.extremes("FedAvg")[3] == pytest.approx(0.1)
    table = spread_table([between])
    assert {row[2:5] for row in table.rows} == {("-", "-", "-")}
    assert "monitor_mode" in table.caption


def test_the_auroc_of_sites_has_a_worst_one_too(tmp_path: Path):
    found = predictions(1.5, 0, 400)
    clients = np.array(["north", "south"] * 199 + ["tiny"] * 2)
    scores = found.scores.clone()
    scores[clients == "south"] = 0
    run = replace(found, clients=clients, scores=scores)
    metrics = {f"test/federation/{key}": (0.7,) for key in ("auroc_macro", "loss", "loss_client_mean")}
    write_run(tmp_path / "run", run, config(), metrics)
    compared = comparison(tmp_path / "run")
    assert compared.logged == ()
    (between,) = compared.sites
    assert between.metric == "AUROC"
    assert between.extremes("FedAvg")[:2] == ("south", 0.5)
    assert between.extremes("FedAvg")[2] > 0.7
    assert "tiny" not in between.values["FedAvg"]


def test_the_command_shows_and_writes_them(
    tmp_path: Path, fedlit_cli: Cli, monkeypatch: pytest.MonkeyPatch, blank_charts
):
    monkeypatch.setenv("COLUMNS", "80")
    folder = segmented(tmp_path / "runs", cases=tuple(DICE))
    out = fedlit_cli(f"compare {folder} --output {tmp_path / 'out'} --latex").succeeded()
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    for words in ("dice", "0.810", "Between sites", "worst site", "No AUROC is shown"):
        assert words in out
    written = pd.read_csv(tmp_path / "out/logged.csv").set_index("method")
    assert written.loc["Scaffold", "difference"] == pytest.approx(0.09)
    assert set(pd.read_csv(tmp_path / "out/sites.csv")["site"]) == {"north", "south"}
    page = (tmp_path / "out/report.html").read_text()
    assert "Metrics that the modules log" in page
    assert "Between sites" in page
    assert "dice" in (tmp_path / "out/logged.tex").read_text()


def test_a_card_has_them_beside_the_auroc_and_in_its_front_matter(tmp_path: Path, fedlit_cli: Cli):
    run = write_trained(tmp_path / "run")
    rows = "".join(f"3,test/federation/dice{end},{v}\n" for end, v in (("", 0.8), ("_client_mean", 0.7)))
    rows += "3,test/federation/dice_by_client/north,0.9\n"
    with (run / "metrics.csv").open("a") as file:
        file.write(rows)
    fedlit_cli(f"card {run} --draws 100").succeeded()
    text = (run / "model_card.md").read_text()
    assert "| federation | dice | all | 0.8 | - |" in text
    assert "| federation | dice | north | 0.9 | - |" in text
    assert "- roc_auc\n- dice\n" in text
