"""The surgical aggregation paper's tables: from made-up metrics, and a whole small reproduction."""

import math

import numpy as np
import pandas as pd
import pytest
import yaml
from rich.console import Console
from scipy import stats

from fedlit.data.labels import harmonised_names
from fedlit.data.schemes import by_sharing
from fedlit.metrics.paired import p_text
from fedlit.reports.reproductions import reproduction
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.reports.reproductions.surgical.figure import draw
from fedlit.reports.reproductions.surgical.tables import Column, SurgicalMethod, markdown, values

SITES = {"A": ("x", "y"), "B": ("x", "z")}


def method(title: str, shift: float, personal: bool = False, cases=("one",)) -> SurgicalMethod:
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
    ax = draw(table, by_sharing(SITES)).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["m", "n"]


def small_tables(config) -> dict:
    """The laptop's tables on two sites, with three methods and two rounds of dilution."""
    sites = {"A": ["Edema", "Effusion", "Mass"], "B": ["Edema", "Effusion", "Nodule"]}
    shared = {"A": ["Edema", "Effusion"], "B": ["Edema", "Effusion"]}

    document = yaml.safe_load(find("surgical-tables").read_text())["scales"]["laptop"]
    others = dict.fromkeys(document["report"]["sites"])

    def declared(clients):
        return {"data.scheme": {"init_args": {"clients": others | clients}}}

    every = {"data.classes": ["Edema", "Effusion", "Mass", "Nodule"]}
    few = {"method": ["vanilla-fedavg", "surgagg-fedavg", "surgagg-fedbnplus"]}
    part = {"config": str(config), "body": None}
    parts = {
        "surgical-table-1": part
        | {"settings": {"data.classes": ["Edema", "Effusion"], **declared(shared)}, "cases": {"{method}": None}},
        "surgical-table-2": part
        | {"settings": every, "cases": {"{method}": {"keys": declared(sites), "labels": few}, "full": None}},
        "surgical-dilution": part
        | {"settings": every | declared(sites) | {"federation.rounds": 2}}
        | {"cases": {"{method}-fedavg": {"labels": {"method": ["Vanilla", "SurgAgg"]}}}, "seeds": [0]},
    }
    kept = ("Vanilla, PartialLoss, SurgAgg FedAvg", "Vanilla, PartialLoss, SurgAgg FedBN+")
    kept += ("Vanilla FedAvg", "SurgAgg FedAvg", "SurgAgg FedBN+")
    columns = dict.fromkeys(document["report"]["columns"]) | {
        "A": {"sets": ["A"], "own": True},
        "B": {"sets": ["B"], "own": True},
        "external (out)": {"sets": ["out"]},
    }
    report = {"sites": others | sites, "columns": columns}
    report["rows"] = {title: None for title in document["report"]["rows"] if title not in kept}
    laptop = {"parts": parts, "report": report}
    return {"base": str(find("surgical-tables")), "scales": {"laptop": laptop}}


@pytest.mark.slow
def test_a_small_one_runs_is_not_run_again_and_writes_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hospital = {"class_path": "PhantomCXR", "init_args": {"hospitals": [{"name": "h", "images": 60}]}}
    other = {"class_path": "PhantomCXR", "init_args": {"hospitals": [{"name": "i", "images": 60}]}}
    third = {"class_path": "PhantomCXR", "init_args": {"hospitals": [{"name": "j", "images": 30}]}}
    data = {"sources": {"A": hospital, "B": other}, "external": {"out": third}, "image_size": 32, "augment": False}
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    small = {
        "data": {"class_path": "Organisations", "init_args": data},
        "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn", "optimizer": sgd}},
        "federation": {"rounds": 1, "weights": "uniform", "workers": 1},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    (tmp_path / "surgical-tables.yaml").write_text(yaml.safe_dump(small_tables(tmp_path / "small.yaml")))
    monkeypatch.setattr(reproduction, "find", lambda name: tmp_path / f"{name}.yaml")
    with (tmp_path / "said.txt").open("w") as said:
        for _ in range(2):
            Reproduction("surgical-tables", jobs=2, seeds=[0]).run(Console(file=said, width=300))
    said = (tmp_path / "said.txt").read_text()
    assert "2 runs, 2 finished before" in said
    folder = tmp_path / "reproductions" / "surgical-tables"
    found = pd.read_csv(folder / "table-2.csv")
    assert set(found["method"]) == {"Vanilla FedAvg", "SurgAgg FedAvg", "SurgAgg FedBN+"}
    assert set(pd.read_csv(folder / "dilution.csv")["method"]) == {"Vanilla", "SurgAgg"}
    assert (folder / "dilution.png").exists()
    assert set(found["class"]) == {"Edema", "Effusion", "Mass", "Nodule"}
    assert (folder / "figure.png").exists()
    assert (folder / "figure.svg").exists()
    ours, published = (folder / "report.md").read_text().split("## Published")
    assert "six hospitals" in ours
    # in Table 1, where all sites label the same, it is one row with the other losses
    assert ours.count("| SurgAgg FedBN+ |") == published.count("| FL + SurgAgg / FedBN+ |") == 3
    assert "FL + SurgAgg" not in ours
    assert list(pd.read_csv(folder / "table-4.csv")["column"].unique()) == ["out, A classes", "out, B classes"]


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
