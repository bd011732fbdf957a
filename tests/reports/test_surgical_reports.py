"""The surgical aggregation paper's tables and figures, and trials of its claims, from documents and made-up runs."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from reproduced import measured_run, table_of_plans
from scipy import stats

from fedlit.core.system.shipped import CONFIGS
from fedlit.data.labels import harmonised_names
from fedlit.experiment.grid import combinations_of, plan
from fedlit.experiment.plan import Plan
from fedlit.metrics.claim import p_text
from fedlit.reports.reproductions.report import tables_of
from fedlit.reports.reproductions.reproduction import Reproduction

TABLES = tables_of(CONFIGS / "surgical")
Column, over_classes = TABLES.Column, TABLES.over_classes

SITES = {"A": ("x", "y"), "B": ("x", "z")}


def test_the_papers_t_test_of_a_hand_derived_example():
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 3.4641 with 2 degrees of freedom, p = 0.0742."""
    assert TABLES.paired_test(np.array([1.0, 2.0, 3.0])) == pytest.approx((0.07417990022744853, 1.0))
    assert np.isnan(TABLES.paired_test(np.array([0.1, 0.1, 0.1]))).all()
    values = {("ours", ""): np.array([0.9, math.nan, 0.8, 0.7]), ("theirs", ""): np.array([0.8, 0.9, 0.85, 0.5])}
    cells, odd = TABLES.compared(values, "ours")
    assert (cells["theirs", ""], odd) == ("0.763 ± 0.180 (-0.083, p 0.370)", [])
    skewed = np.exp(4 * np.random.default_rng(0).standard_normal(20))
    assert TABLES.compared({("ours", ""): skewed * 0, ("theirs", ""): skewed}, "ours")[1] == ["theirs"]


def row(folder: Path, method: str, tested: dict[str, float], case: str = "", seed: int = 0) -> dict:
    directory = measured_run(folder / f"{method}-{case}-{seed}", tested)
    return {"method": method, "case": case or method, "seed": seed, "directory": directory}


def values(rows: list[dict], columns: list) -> dict[tuple[str, str, str], float]:
    table = TABLES.values(pd.DataFrame(rows), columns, SITES)
    return table.set_index(["method", "column", "class"])["auroc"].to_dict()


def everywhere(shift: float = 0.0) -> dict[str, float]:
    return {
        f"test/{s}/auroc/{c}": 0.5 + 0.1 * j + 0.05 * i + shift
        for i, s in enumerate(("A", "B", "federation"))
        for j, c in enumerate("xyz")
    }


def test_a_column_of_own_classes_takes_each_site_for_what_it_labels(tmp_path):
    own, together = TABLES.columns_of({"own": ["A", "B"], "all": ["federation"]}, SITES, "", False)
    found = values([row(tmp_path, "m", everywhere())], [own, together])
    assert found["m", "own", "x"] == pytest.approx((0.5 + 0.55) / 2)
    assert found["m", "own", "y"] == pytest.approx(0.6)
    assert found["m", "own", "z"] == pytest.approx(0.75)
    assert found["m", "all", "z"] == pytest.approx(0.8)


def test_values_are_means_over_seeds_and_missing_if_a_seed_lacks_one(tmp_path):
    column = Column("all", ["federation"], ["x", "y"], ["A", "B"])
    lacking = {key: value for key, value in everywhere(0.1).items() if not key.endswith("/y")}
    rows = [row(tmp_path, "m", everywhere()), row(tmp_path, "m", lacking, seed=1)]
    found = values(rows, [column])
    assert found["m", "all", "x"] == pytest.approx(0.65)
    assert math.isnan(found["m", "all", "y"])


def test_personal_models_and_unlearned_classes_have_no_mean_over_all(tmp_path):
    (column,) = TABLES.columns_of({"all": ["federation"]}, SITES, "", False)
    lacking = {key: value for key, value in everywhere().items() if key != "test/federation/auroc/z"}
    rows = [row(tmp_path, "PFL FedBN", everywhere()), row(tmp_path, "lacking", lacking)]
    rows.append(row(tmp_path, "SurgAgg FedBN+", everywhere(0.1)))
    text = over_classes("T", TABLES.values(pd.DataFrame(rows), [column], SITES))
    assert "| PFL FedBN | - |" in text
    assert "| lacking | - |" in text
    assert "| SurgAgg FedBN+ | 0.800 ± 0.100 |" in text


def test_models_of_the_sites_own_have_a_mean_on_an_external_set_and_one_model_a_sites_classes(tmp_path):
    """PFL's cells of Tables 1 and 4: the mean of both models, and the model of the site whose classes they are."""
    tested = {
        "test/X by A/auroc/x": 0.6,
        "test/X by A/auroc/y": 0.7,
        "test/X by B/auroc/x": 0.8,
        "test/X by B/auroc/z": 0.5,
    }
    rows = [row(tmp_path, "PFL", tested)]
    for site, value in (("A", 0.9), ("B", 0.7)):
        rows.append(row(tmp_path, "Individual", {"test/X/auroc/x": value}, f"individual-{site}"))
    external = TABLES.columns_of({"external": ["X"]}, SITES, "", False)
    by_site = TABLES.columns_of({"external": ["X"]}, SITES, "site", False)
    assert [column.title for column in by_site] == ["X, A classes", "X, B classes"]
    found = values(rows, [*external, *by_site])
    assert found["PFL", "external", "x"] == pytest.approx(0.7)
    assert math.isnan(found["PFL", "external", "y"])  # the paper's Table 2 prints none either
    assert found["PFL", "X, A classes", "y"] == pytest.approx(0.7)
    assert found["PFL", "X, B classes", "x"] == pytest.approx(0.8)
    assert found["Individual", "external", "x"] == pytest.approx(0.8)


def test_individual_models_are_each_scored_at_their_own_site(tmp_path):
    of_a = row(tmp_path, "Individual", {"test/A/auroc/x": 0.6, "test/A/auroc/y": 0.7}, "individual-A")
    of_b = row(tmp_path, "Individual", {"test/B/auroc/x": 0.8}, "individual-B")
    found = values([of_a, of_b], TABLES.columns_of({"own": ["A", "B"]}, SITES, "", False))
    assert found["Individual", "own", "x"] == pytest.approx(0.7)
    assert found["Individual", "own", "y"] == pytest.approx(0.7)
    assert math.isnan(found["Individual", "own", "z"])


def test_differences_and_p_are_those_of_a_paired_test_over_classes():
    rng = np.random.default_rng(0)
    one, other = rng.uniform(0.7, 0.9, 10), rng.uniform(0.6, 0.8, 10)
    rows = [
        {"method": name, "column": "c", "class": str(i), "auroc": v}
        for name, vs in (("other", other), ("SurgAgg FedBN+", one))
        for i, v in enumerate(vs)
    ]
    p = stats.ttest_rel(one, other).pvalue
    text = over_classes("T", pd.DataFrame(rows))
    assert f"({(other - one).mean():+.3f}, p {p_text(p)})" in text
    assert "***" not in text
    assert "Shapiro-Wilk p < 0.05" not in text
    rows[0]["auroc"] = 50.0
    assert "the t-test does not hold there: other, c" in over_classes("T", pd.DataFrame(rows))


@pytest.mark.parametrize("scale", ["laptop", "paper", "linked"])
def test_sites_and_classes_are_those_of_the_data(scale):
    made = Reproduction("surgical-tables", scale=scale)
    sites = {site: set(own) for site, own in made.chosen.report["sites"].items()}
    assert made.plans["table-1"].set["data.classes"] == sorted(set.intersection(*sites.values()))
    assert made.plans["table-2"].set["data.classes"] == sorted(set.union(*sites.values()))
    if scale == "laptop":
        declared = made.plans["table-2"].set["data.scheme"]["init_args"]["clients"]
        assert {site: set(own) for site, own in declared.items()} == sites
    else:
        assert sites == {site: set(harmonised_names(site)) for site in ("NIH", "CheXpert")}


def test_the_laptops_tables_and_dilution_are_made_of_runs(tmp_path):
    """Federations log ``auroc_unique`` and an external set by site: see the tests of their evaluation."""
    reproduced = Reproduction("surgical-tables")
    sites = reproduced.chosen.report["sites"]

    def measured(each, seed):
        sets, lead = (*sites, "federation", "abroad", *(f"abroad by {site}" for site in sites)), "surgagg" in each.case
        tested = {f"test/{scored}/auroc/{label}": 0.7 for scored in sets for label in each.settings["data.classes"]}
        return tested, {step: {"val/auroc_unique": 0.6 + 0.01 * step + 0.1 * lead} for step in (1, 2, 3, 4, 8)}

    report = reproduced.report(table_of_plans(reproduced.plans, tmp_path, measured))
    assert set(report.tables) == {"table-1", "table-2", "table-3", "table-4", "dilution"}
    found = report.tables["table-2"].set_index("method")["auroc"]
    assert set(found["SurgAgg FedBN+"].round(9)) == {0.7}
    # in Table 1, where all sites label the same, it is one row with the other losses
    assert report.text.count("| SurgAgg FedBN+ | 0.700 ± 0.000 ") == 3
    assert "|  | 1 rounds | 2 rounds | 4 rounds | 8 rounds |" in report.text
    assert "| Heads on a fixed body, Vanilla | 0.6100 ± 0.0000 (-0.1000) | 0.6200 ± 0.0000 (-0.1000) |" in report.text
    assert "| Heads on a fixed body, SurgAgg | 0.7100 ± 0.0000 | 0.7200 ± 0.0000 | 0.7400 " in report.text


def with_last_case(planned: Plan, **grid: list) -> Plan:
    return replace(planned, cases=dict([*planned.cases.items()][-1:]), grid=planned.grid | grid, seeds=[0], starts=None)


EVERYTHING = "All labels"
LEVEL = {"Central": 0.70, "Vanilla": 0.60, "PartialLoss": 0.66, "SurgAgg": 0.68, EVERYTHING: 0.75}


def auroc(labels: dict, seed: int) -> float:
    """A method's level, less where clients are many and more where they share classes; seeds are 0.02 apart."""
    wiggle = {"Vanilla": 0.004, "PartialLoss": 0.001}.get(labels["method"], 0.0) * (labels["clients"] ** 2 % 7)
    return LEVEL[labels["method"]] - 0.005 * labels["clients"] + 0.01 * labels["shared"] + wiggle + 0.02 * seed


@pytest.fixture
def runs(tmp_path) -> pd.DataFrame:
    """What the laptop's runs leave, two seeds each; the external test set is 0.1 harder."""

    def measured(each, seed):
        value = auroc(each.labels, seed)
        return ({"test/federation/auroc_macro": value, "test/abroad/auroc_macro": value - 0.1},)

    return table_of_plans(Reproduction("surgical-fig5").plans, tmp_path, measured, [0, 1])


def labels_of(scale: str = "laptop") -> list[tuple[str, int, int]]:
    every = [
        each
        for planned in Reproduction("surgical-fig5", scale=scale).plans.values()
        for each in combinations_of(planned)
    ]
    return [(each.case, each.labels["clients"], each.labels["shared"]) for each in every]


def test_one_of_the_two_varies_and_a_setting_on_both_axes_has_one_name():
    found = labels_of()
    settings = {(clients, shared) for _, clients, shared in found}
    assert settings == {(2, 4), (4, 4), (8, 4), (4, 0), (4, 8), (4, 10), (0, 0)}
    assert len({case for case, _, _ in found}) == 6 * 4 + 1
    whole = Reproduction("surgical-fig5").plans
    for name, axis in (("surgical-fig6", "by-clients"), ("surgical-fig7", "by-shared")):
        own = Reproduction(name).plans
        assert own == {axis: whole[axis], "all-labels": whole["all-labels"]}
    assert len({planned.experiment for planned in whole.values()}) == 1
    found = labels_of("paper")
    settings = {(clients, shared) for _, clients, shared in found}
    assert settings == {(k, 6) for k in (2, 3, 4, 5, 6, 8, 10)} | {(4, s) for s in (0, 2, 6, 10, 12, 13, 14)} | {(0, 0)}
    assert len({case for case, _, _ in found}) == 13 * 4 + 1


def test_runs_say_who_labels_what(tmp_path):
    made, most = Reproduction("surgical-fig5", run_dir=tmp_path), 10
    some = with_last_case(made.plans["by-shared"], **{"data.scheme.shared": [most]})
    surgical = yaml.safe_load(plan(some)[0].config)
    assert surgical["data"]["init_args"]["scheme"]["init_args"]["shared"] == most
    assert not surgical["data"]["init_args"]["pooled"]
    heads = [section["aggregators"] for section in (*surgical["phases"], surgical["federation"])]
    assert all(head[0]["class_path"].endswith("SurgicalHeads") for head in heads)
    (everything,) = (each.settings for each in combinations_of(made.plans["all-labels"]))
    assert (everything["data.scheme"], everything["data.pooled"]) == (None, True)
    assert [each["class_path"] for each in everything["federation.aggregators"]] == ["FedAvg"]


def test_methods_are_compared_over_settings_with_the_mean_over_seeds(runs):
    report = Reproduction("surgical-fig5").report(runs)
    values = report.tables["values"]
    assert len(values) == 2 * (3 * 4 + 4 * 4 + 1)
    cell = values[(values["clients"] == 8) & (values["method"] == "SurgAgg") & (values["set"] == "abroad")]
    assert cell["auroc"].item() == pytest.approx(0.68 - 0.04 + 0.04 + 0.01 - 0.1)
    lines = report.text.splitlines()
    headings = [line.strip("*") for line in lines if line.startswith("**")]
    assert headings == [f"{s}, by number of {a}" for a in ("clients", "shared classes") for s in ("home", "abroad")]
    at_home = lines[:9]
    assert at_home[2] == "| method | 2 | 4 | 8 | mean | below all labels by |"
    (surgical,) = [line for line in at_home if line.startswith("| SurgAgg |")]
    assert surgical == "| SurgAgg | 0.720 | 0.710 | 0.690 | 0.707 ± 0.015 | 0.053 |"
    (vanilla,) = [line for line in at_home if line.startswith("| Vanilla |")]
    mine = [auroc({"method": "Vanilla", "clients": k, "shared": 4}, 0) for k in (2, 4, 8)]
    best = [auroc({"method": "SurgAgg", "clients": k, "shared": 4}, 0) for k in (2, 4, 8)]
    p = stats.ttest_rel(mine, best).pvalue
    behind = sum(mine) / 3 - sum(best) / 3
    assert f"({behind:+.3f}, p {p_text(p)})" in vanilla
    assert 0.001 < p < 0.05


AUROC = "test_curve/federation/auroc_macro"


@pytest.fixture
def sites(tmp_path) -> tuple[Reproduction, pd.DataFrame]:
    """The reproduction by number of sites, and runs in which surgical heads lead by K thousandths at the end."""
    reproduced = Reproduction("surgical-sites")

    def measured(each, seed):
        lead = each.labels["clients"] / 1000 if each.labels["method"] == "SurgAgg" else 0.0
        curve = {4: 0.6, 8: 0.65, 16: 0.7, 32: 0.75 + lead + seed / 100}
        return {"test/federation/auroc_macro": 0.5}, {step: {AUROC: value} for step, value in curve.items()}, 8

    return reproduced, table_of_plans({"sites": reproduced.plans["sites"]}, tmp_path, measured, [0, 1])


def test_columns_are_test_auroc_after_rounds_and_not_of_the_best_model(sites):
    reproduced, runs = sites
    lines = reproduced.report(runs).text.splitlines()
    assert lines[0] == "|  | 4 rounds | 8 rounds | 16 rounds | 32 rounds |"
    assert lines[2].startswith(
        "| Hidden layer, K = 2, PartialLoss | 0.6000 ± 0.0000 | 0.6500 ± 0.0000 | 0.7000 ± 0.0000 | 0.7550 ± "
    )
    assert lines[3].startswith("| Hidden layer, K = 2, SurgAgg |")
    (ten,) = [line for line in lines if line.startswith("| Hidden layer, K = 10, SurgAgg")]
    assert ten.count("(+0.0000)") == 3
    assert "(+0.0100)" in ten


def test_runs_of_two_plans_are_never_one_row(sites):
    reproduced, runs = sites
    both = pd.concat([runs, runs.assign(title="Whole network")])
    rows = [len(reproduced.report(each).tables["table"]) for each in (runs, both)]
    assert rows[1] == 2 * rows[0]


def test_a_round_that_was_not_measured_has_no_column(sites):
    reproduced, runs = sites
    for directory in runs["directory"]:
        (directory / "metrics.csv").write_text(f"step,key,value\n4,{AUROC},0.6\n")
    assert reproduced.report(runs).text.splitlines()[0] == "|  | 4 rounds |"


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_methods_differ_in_their_aggregators_alone(scale):
    planned = Reproduction("surgical-sites", scale=scale).plans["sites"]
    config = yaml.safe_load(Path(planned.config[0]).read_text())
    keys = {"federation.test_curves": config["federation"].get("test_curves")}
    keys["data.scheme.shared"] = config["data"]["init_args"]["scheme"]["init_args"]["shared"]
    some = replace(planned, grid={"data.partition.clients": [10]})
    partial, surgical = ({**keys, **each.settings} for each in combinations_of(some))
    assert (partial["federation.test_curves"], partial["data.scheme.shared"]) == (True, 0)
    for of_method in (partial, surgical):
        del of_method["federation.aggregators"]
        of_method.pop("phases.aggregators", None)
    assert partial == surgical


def test_the_warm_up_is_a_table_of_methods_by_metrics(tmp_path):
    reproduced = Reproduction("surgical-warmup")
    keys = reproduced.chosen.report["metrics"].values()

    def measured(each, seed):
        return (dict.fromkeys(keys, 0.7 + 0.01 * seed - 0.02 * (each.case == "partialloss")),)

    report = reproduced.report(table_of_plans(reproduced.plans, tmp_path, measured))
    assert list(report.tables["table"]["column"].unique()) == list(reproduced.chosen.report["metrics"])
    assert "| FedBN+, PartialLoss | 0.6900 ± 0.0100 (" in report.text
    assert "| FedBN+, SurgAgg | 0.7100 ± 0.0100 |" in report.text
    paper = Reproduction("surgical-warmup", scale="paper").plans["warmup"]
    assert (paper.starts, Path(paper.config[0]).name) == (None, "nih-chexpert.yaml")
