"""The surgical aggregation paper's tables and figures, and trials of its claims, from documents and made-up runs."""

import math

import numpy as np
import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import table_of_runs
from scipy import stats

from fedlit.core.errors import ConfigError
from fedlit.core.system.shipped import CONFIGS
from fedlit.data.labels import harmonised_names
from fedlit.data.schemes import by_sharing
from fedlit.metrics.paired import p_text
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.report import tables_of
from fedlit.reports.reproductions.reproduction import Reproduction

TABLES = tables_of(CONFIGS / "surgical")
Column, SurgicalMethod, markdown, values = TABLES.Column, TABLES.SurgicalMethod, TABLES.markdown, TABLES.values

SITES = {"A": ("x", "y"), "B": ("x", "z")}


def method(title: str, shift: float, personal: bool = False, cases=("one",)) -> object:
    measured = {
        f"test/{s}/auroc/{c}": 0.5 + 0.1 * j + 0.05 * i + shift
        for i, s in enumerate(("A", "B", "federation"))
        for j, c in enumerate("xyz")
    }
    return SurgicalMethod(title, cases, personal, {case: measured for case in cases})


def test_a_column_of_own_classes_takes_each_site_for_what_it_labels():
    own, everywhere = Column("own", ("A", "B"), True), Column("all", ("federation",), False)
    table = values([method("m", 0.0)], [own, everywhere], ("x", "y", "z"), SITES)
    found = {(r.column, r._3): r.auroc for r in table.itertuples()}
    assert found["own", "x"] == pytest.approx((0.5 + 0.55) / 2)
    assert found["own", "y"] == pytest.approx(0.6)
    assert found["own", "z"] == pytest.approx(0.75)
    assert found["all", "z"] == pytest.approx(0.8)


def test_personal_models_and_unlearned_classes_have_no_mean_over_all():
    everywhere = Column("all", ("federation",), False)
    lacking = method("lacking", 0.0)
    lacking.measured["one"]["test/federation/auroc/z"] = math.nan
    table = values([method("personal", 0.0, True), lacking, method("S", 0.1)], [everywhere], ("x", "y", "z"), SITES)
    text = markdown("T", table, "S")
    assert "| personal | - |" in text
    assert "| lacking | - |" in text
    assert "| S | 0.800 ± 0.100 |" in text


def test_models_of_the_sites_own_have_a_mean_on_an_external_set_and_one_model_a_sites_classes():
    """PFL's cells of Tables 1 and 4: the mean of both models, and the model of the site whose classes they are."""
    measured = {
        "test/X by A/auroc/x": 0.6,
        "test/X by A/auroc/y": 0.7,
        "test/X by B/auroc/x": 0.8,
        "test/X by B/auroc/z": 0.5,
    }
    pfl = SurgicalMethod("PFL", ("pfl",), True, {"pfl": measured})
    everywhere = Column("external", ("X",))
    assert everywhere.value(pfl, "x", SITES) == pytest.approx(0.7)
    assert math.isnan(everywhere.value(pfl, "y", SITES))  # the paper's Table 2 prints none either
    assert Column("A's", ("X",), False, ("x", "y"), ["A"]).value(pfl, "y", SITES) == pytest.approx(0.7)
    assert Column("B's", ("X",), False, ("x", "z"), ["B"]).value(pfl, "x", SITES) == pytest.approx(0.8)
    alone = {"individual-A": {"test/X/auroc/x": 0.9}, "individual-B": {"test/X/auroc/x": 0.7}}
    individual = SurgicalMethod("Individual", ("individual-A", "individual-B"), True, alone)
    assert everywhere.value(individual, "x", SITES) == pytest.approx(0.8)


def test_individual_models_are_each_scored_at_their_own_site():
    measured = {"individual-A": {"test/A/auroc/x": 0.6, "test/A/auroc/y": 0.7}, "individual-B": {"test/B/auroc/x": 0.8}}
    m = SurgicalMethod("Individual", ("individual-A", "individual-B"), True, measured)
    own = Column("own", ("A", "B"), True)
    assert own.value(m, "x", SITES) == pytest.approx(0.7)
    assert own.value(m, "y", SITES) == pytest.approx(0.7)
    assert math.isnan(own.value(m, "z", SITES))


def test_differences_and_p_are_those_of_a_paired_test_over_classes():
    rng = np.random.default_rng(0)
    one, other = rng.uniform(0.7, 0.9, 10), rng.uniform(0.6, 0.8, 10)
    rows = [
        {"method": name, "column": "c", "class": str(i), "auroc": v}
        for name, vs in (("other", other), ("S", one))
        for i, v in enumerate(vs)
    ]
    p = stats.ttest_rel(one, other).pvalue
    text = markdown("T", pd.DataFrame(rows), "S")
    assert f"({(other - one).mean():+.3f}, p {p_text(p)})" in text
    assert "***" not in text
    assert "Shapiro-Wilk p < 0.05" not in text
    rows[0]["auroc"] = 50.0
    assert "the t-test does not hold there: other, c" in markdown("T", pd.DataFrame(rows), "S")


def test_sites_and_classes_are_those_of_the_data():
    scales = read_document(find("surgical-tables")).scales.values()
    for scale in scales:
        sites = {site: set(own) for site, own in scale.report["sites"].items()}
        assert scale.parts["surgical-table-1"].settings["data.classes"] == sorted(set.intersection(*sites.values()))
        assert scale.parts["surgical-table-2"].settings["data.classes"] == sorted(set.union(*sites.values()))
    assert sites == {site: set(harmonised_names(site)) for site in ("NIH", "CheXpert")}


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_rows_and_columns_name_cases_and_sites_that_there_are(scale):
    chosen = read_document(find("surgical-tables")).scales[scale]
    for part in ("surgical-table-1", "surgical-table-2"):
        rows = [row for row in chosen.report["rows"].values() if row.get("part", part) == part]
        assert {case for row in rows for case in row["cases"]} == set(chosen.parts[part].cases)
    own = [name for column in chosen.report["columns"].values() if column.get("own") for name in column["sets"]]
    assert own == list(chosen.report["sites"])


def test_the_picture_has_a_row_a_method():
    table = values([method("m", 0.0), method("n", 0.1)], [Column("own", ("A", "B"), True)], ("x", "y", "z"), SITES)
    ax = TABLES.draw_classes(table, by_sharing(SITES)).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["m", "n"]


def test_the_laptops_tables_and_dilution_are_made_of_runs(tmp_path):
    """Federations log ``auroc_unique`` and an external set by site: see the tests of their evaluation."""
    reproduced = Reproduction("surgical-tables", seeds=[0, 1])
    sites = reproduced.chosen.report["sites"]

    def measured(part, name, seed):
        sets, lead = (*sites, "federation", "abroad", *(f"abroad by {site}" for site in sites)), "surgagg" in name
        tested = {f"test/{scored}/auroc/{label}": 0.7 for scored in sets for label in part.settings["data.classes"]}
        return tested, {step: {"val/auroc_unique": 0.6 + 0.01 * step + 0.1 * lead} for step in (1, 2, 4, 8)}

    report = reproduced.report(table_of_runs(reproduced.parts(), tmp_path, measured))
    assert set(report.tables) == {"table-1", "table-2", "table-3", "table-4", "dilution"}
    assert set(report.figures) == {"figure", "dilution"}
    found = report.tables["table-2"].set_index("method")["auroc"]
    assert set(found["SurgAgg FedBN+"].round(9)) == {0.7}
    # in Table 1, where all sites label the same, it is one row with the other losses
    assert report.text.count("| SurgAgg FedBN+ | 0.700 ± 0.000 ") == 3
    assert "| Vanilla | 0.610 (-0.100 ± 0.000) | 0.620 (-0.100 ± 0.000) |" in report.text
    assert "| SurgAgg | 0.710 | 0.720 | 0.740 | 0.780 |" in report.text


def test_one_table_runs_no_more_than_it_needs():
    reproduced = Reproduction("surgical-table1", seeds=[0])
    assert [part.experiment for part in reproduced.parts()] == ["surgical-table-1"]
    everything = [part.experiment for part in Reproduction("surgical-tables").parts()]
    assert everything == ["surgical-table-1", "surgical-table-2", "surgical-dilution"]
    by_site = Reproduction("surgical-table4").parts()
    assert [part.experiment for part in by_site] == ["surgical-table-2"]


@pytest.mark.parametrize("scale", [pytest.param("laptop", marks=pytest.mark.slow), "paper"])
def test_runs_of_both_scales_are_valid(scale, tmp_path, plan_some):
    root = tmp_path if scale == "paper" else None
    made = Reproduction("surgical-tables", root=root, scale=scale, run_dir=tmp_path)
    assert ("surgical-dilution" in {part.experiment for part in made.parts()}) == (scale == "laptop")
    assert {run.rounds for run in plan_some(made, 1, slice(1, 2))["surgical-table-2"]} == {150 if root else 8}


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


AUROC = "test_curve/federation/auroc_macro"


@pytest.fixture
def sites(tmp_path) -> tuple[Reproduction, pd.DataFrame]:
    """The reproduction by number of sites, and runs in which surgical heads lead by K thousandths at the end."""
    reproduced = Reproduction("surgical-sites", seeds=[0, 1])

    def measured(part, name, seed):
        labels = part.cases[name].labels
        lead = labels["clients"] / 1000 if labels["method"] == "SurgAgg" else 0.0
        curve = {4: 0.6, 8: 0.65, 16: 0.7, 32: 0.75 + lead + seed / 100}
        return {"test/federation/auroc_macro": 0.5}, {step: {AUROC: value} for step, value in curve.items()}, 8

    return reproduced, table_of_runs(reproduced.parts()[:1], tmp_path, measured)


def test_columns_are_test_auroc_after_rounds_and_not_of_the_best_model(sites):
    reproduced, runs = sites
    lines = reproduced.report(runs).text.splitlines()
    assert lines[0] == "|  | 4 rounds | 8 rounds | 16 rounds | 32 rounds |"
    assert lines[2].startswith(
        "| Hidden layer, K = 2, PartialLoss | 0.6000 ± 0.0000 | 0.6500 ± 0.0000 | 0.7000 ± 0.0000 | 0.7550 ± "
    )
    (ten,) = [line for line in lines if line.startswith("| Hidden layer, K = 10, SurgAgg")]
    assert ten.count("(+0.0000)") == 3
    assert "(+0.0100)" in ten


def test_runs_of_two_parts_are_never_one_row(sites):
    """They were pooled as six seeds of one."""
    reproduced, runs = sites
    with refused(ConfigError, "seed 0", "'Hidden layer, K = 2, PartialLoss', '4 rounds'"):
        reproduced.report(pd.concat([runs, runs]))
    both = pd.concat([runs, runs.assign(title="Whole network")])
    rows = [len(reproduced.report(each).tables["table"]) for each in (runs, both)]
    assert rows[1] == 2 * rows[0]


def test_a_round_that_was_not_measured_is_an_error(sites):
    reproduced, runs = sites
    (runs["directory"][0] / "metrics.csv").write_text(f"step,key,value\n4,{AUROC},0.6\n")
    with refused(ConfigError, "report.rounds", "no 8", "4"):
        reproduced.report(runs)


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_methods_differ_in_their_aggregators_alone(scale, tmp_path, plan_some):
    given = {"scale": scale, "run_dir": tmp_path} | ({"root": tmp_path} if scale == "paper" else {})
    planned = plan_some(Reproduction("surgical-sites", seeds=[0], **given), 2, slice(1))
    configs = [yaml.safe_load(run.config) for run in planned["surgical-sites"]]
    for config in configs:
        assert config["data"]["init_args"]["scheme"]["init_args"]["shared"] == 0
        assert config["federation"]["test_curves"] is True
        del config["name"], config["tags"], config["federation"]["aggregators"]
        for phase in config["phases"]:
            del phase["aggregators"]
    partial, surgical = configs
    assert partial == surgical


def test_one_condition_of_a_part_differs_from_the_first(tmp_path, plan_some):
    """What trains, how large sites are, or both."""
    planned = plan_some(Reproduction("surgical-sites", seeds=[0], run_dir=tmp_path))
    configs = {part: yaml.safe_load(runs[-1].config) for part, runs in planned.items() if "body" not in part}
    trains = {part: config["model"]["init_args"]["trainable"] for part, config in configs.items()}
    sizes = {part: config["data"]["init_args"]["partition"]["init_args"]["sizes"] for part, config in configs.items()}
    skewed = [16, 8, 4, 2, 1]
    assert trains == {
        "surgical-sites": "head",
        "surgical-sites-whole": "all",
        "surgical-sites-sizes": "head",
        "surgical-sites-whole-sizes": "all",
    }
    assert [sizes[part] for part in trains] == [None, None, skewed, skewed]
