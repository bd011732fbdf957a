"""The surgical aggregation paper's Figures 5 to 7: their settings, and what they make of made-up runs."""

import pandas as pd
import pytest
import yaml
from reproduced import table_of_runs
from scipy import stats

from fedlit.metrics.paired import p_text
from fedlit.reports.reproductions.reproduction import Reproduction

EVERYTHING = "All labels"
LEVEL = {"Central": 0.70, "Vanilla": 0.60, "PartialLoss": 0.66, "SurgAgg": 0.68, EVERYTHING: 0.75}


def auroc(labels: dict, seed: int) -> float:
    """A method's level, less where clients are many and more where they share classes; seeds are 0.02 apart."""
    wiggle = {"Vanilla": 0.004, "PartialLoss": 0.001}.get(labels["method"], 0.0) * (labels["clients"] ** 2 % 7)
    return LEVEL[labels["method"]] - 0.005 * labels["clients"] + 0.01 * labels["shared"] + wiggle + 0.02 * seed


@pytest.fixture
def runs(tmp_path) -> pd.DataFrame:
    """What the laptop's runs leave, two seeds each; the external test set is 0.1 harder."""

    def measured(part, name, seed):
        value = auroc(part.cases[name].labels, seed)
        return ({"test/federation/auroc_macro": value, "test/abroad/auroc_macro": value - 0.1},)

    return table_of_runs(Reproduction("surgical-fig5").parts(), tmp_path, measured)


def test_one_of_the_two_varies_and_a_setting_on_both_axes_runs_once():
    (part,) = Reproduction("surgical-fig5").parts()
    settings = {(case.labels["clients"], case.labels["shared"]) for case in part.cases.values()}
    assert settings == {(2, 4), (4, 4), (8, 4), (4, 0), (4, 8), (4, 10), (0, 0)}
    assert len(part.cases) == 6 * 4 + 1
    for name in ("surgical-fig6", "surgical-fig7"):
        (own,) = Reproduction(name).parts()
        assert own.experiment == part.experiment
        assert own.cases.items() <= part.cases.items()
    (paper,) = Reproduction("surgical-fig5", scale="paper").parts()
    settings = [(case.labels["clients"], case.labels["shared"]) for case in paper.cases.values()]
    assert set(settings) == {(k, 6) for k in (2, 3, 4, 5, 6, 8, 10)} | {(4, s) for s in (0, 2, 6, 10, 12, 13, 14)} | {
        (0, 0)
    }
    assert len(settings) == 13 * 4 + 1


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_runs_of_both_scales_are_valid_and_say_who_labels_what(scale, tmp_path, plan_some):
    reproduced = Reproduction(
        "surgical-fig5", root=tmp_path if scale == "paper" else None, scale=scale, run_dir=tmp_path
    )
    surgical, everything = (yaml.safe_load(run.config) for run in plan_some(reproduced, 2)["surgical-simulation"])
    assert surgical["data"]["init_args"]["scheme"]["init_args"]["shared"] == (14 if scale == "paper" else 10)
    assert not surgical["data"]["init_args"]["pooled"]
    assert everything["data"]["init_args"]["scheme"] is None
    assert everything["data"]["init_args"]["pooled"]
    heads = [section["aggregators"] for section in (*surgical["phases"], surgical["federation"])]
    assert all(head[0]["class_path"].endswith("SurgicalHeads") for head in heads)
    heads = [section["aggregators"] for section in (*everything["phases"], everything["federation"])]
    assert all([a["class_path"].rpartition(".")[2] for a in head] == ["FedAvg"] for head in heads)


def test_methods_are_compared_over_settings_with_the_mean_over_seeds(runs):
    report = Reproduction("surgical-fig5", seeds=[0, 1]).report(runs)
    values = report.tables["values"]
    assert len(values) == 2 * 25
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


def test_the_picture_has_a_panel_an_axis_and_test_set(runs):
    axes = Reproduction("surgical-fig5").report(runs).figures["figure"].axes
    assert [(ax.get_title(), ax.get_xlabel()) for ax in axes] == [
        (title, f"number of {axis}") for axis in ("clients", "shared classes") for title in ("home", "abroad")
    ]
    assert axes[0].get_xticks().tolist() == [2, 4, 8]
    assert [line.get_label() for line in axes[2].lines] == ["Central", "Vanilla", "PartialLoss", "SurgAgg", EVERYTHING]
    assert axes[2].lines[3].get_xdata().tolist() == [0, 4, 8, 10]
    one = Reproduction("surgical-fig7").report(runs)
    assert len(one.figures["figure"].axes) == 2
