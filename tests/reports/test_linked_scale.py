"""The scale ``linked``: what the code that a paper links does otherwise than the paper's text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from reproduced import one_run

from fedlit.core.system.shipped import CONFIGS
from fedlit.experiment.grid import combinations_of
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.report import tables_of
from fedlit.reports.reproductions.reproduction import Reproduction


def named(aggregators: list[dict]) -> list[str]:
    return [each["class_path"].rpartition(".")[2] for each in aggregators]


def settings(name: str, plan: str, scale: str = "linked") -> dict[str, dict]:
    """The keys of every case of a plan, and its labels."""
    planned = Reproduction(name, scale=scale).plans[plan]
    return {each.case: {**each.settings, "labels": each.labels} for each in combinations_of(planned)}


def planned(name: str, plan: str, tmp_path: Path, **only: object) -> dict[str, dict]:
    """The configurations of some cases of a plan."""
    small = {"model.backbone": "resnet10t"}
    reproduced = Reproduction(name, root=tmp_path, scale="linked", run_dir=tmp_path / "runs", set=small)
    reproduced.plans = {plan: replace(reproduced.plans[plan], **only)}
    return {run.case: yaml.safe_load(run.config) for runs in reproduced.plan().values() for run in runs}


@pytest.mark.parametrize("name", ["fdam-table4", "fdam-table5"])
def test_tables_4_and_5_have_one_model_per_class_from_one_body_that_is_not_upsampled(name):
    plans = Reproduction(name, scale="linked").plans.values()
    assert len({label for each in plans for label in each.set["data.classes"]}) == len(plans) == 5
    (body,) = {each.bodies.experiment: each.bodies for each in plans}.values()
    assert body.set["data.sources.CheXpert.upsample"] == []
    assert "data.classes" not in body.set
    backbones = {each.set["model.backbone"] for each in (*plans, body)}
    assert backbones == {"densenet121.tv_in1k" if name == "fdam-table4" else "densenet161.tv_in1k"}
    assert len({each.experiment for each in plans} | {each.experiment_of_tries("1") for each in plans}) == 10


@pytest.mark.slow
def test_rows_of_the_tables_are_trained_as_in_the_code_of_surgical_aggregation(tmp_path, no_pretrained):
    """Heads of partial loss are warmed up on negatives where labels are missing."""
    wanted = ["central", "partialloss-fedbnplus", "surgagg-fedbnplus"]
    cases = Reproduction("surgical-table2", scale="linked").plans["table-2"].cases
    found = planned("surgical-table2", "table-2", tmp_path, cases={name: cases[name] for name in wanted})
    for case, keys in found.items():
        data, model = (keys[section]["init_args"] for section in ("data", "model"))
        phase, main = keys["phases"][0], keys["federation"]
        assert data["resize"] == "pad"
        assert data["sources"]["CheXpert"]["init_args"]["parts"] == ["train"]
        turn, contrast = data["augment"][1]["init_args"], data["augment"][2]["init_args"]
        assert (turn["degrees"], turn["scale"], contrast["contrast"]) == (72, [0.667, 2.0], 0.75)
        assert (model["hidden"], model["drop_rate"], model["optimizer"]["init_args"]["lr"]) == (256, 0.3, 5e-5)
        assert phase["optimizer"]["init_args"]["lr"] == 1e-3
        assert phase["rounds"] * phase["schedule"]["init_args"]["window"] == 15
        negative = phase["objective"] is not None and phase["objective"]["init_args"]["missing"] == "negative"
        assert negative == (case == "partialloss-fedbnplus")
        assert model["objective"] is None  # partial loss, in the main part
        alone = case == "central"
        assert phase["rounds"] == (15 if alone else 1)
        assert main["lr_factors"] == (None if alone else {"NIH": 0.2})
        assert "FedBNPlus" in named(main["aggregators"])
        stops = {"surgagg-fedbnplus": (150, None, None), "central": (1000, 25, None)}.get(case, (1000, 26, 1e-4))
        assert (main["rounds"], main["patience"], main["patience_margin"]) == stops
    assert list(found) == wanted
    ends = [f"federation.{key}" for key in ("aggregators", "lr_factors", "patience", "patience_margin")]
    vanilla, partial = (cases[f"{name}-fedbnplus"] for name in ("vanilla", "partialloss"))
    assert [key for key in ("federation.rounds", *ends) if vanilla.get(key) != partial.get(key)] == []
    central, individual = (cases[name] for name in ("central", "individual-NIH"))
    assert all(central[key] == individual[key] for key in (*ends, "phases.rounds", "phases.schedule"))


def test_where_all_sites_label_the_same_surgical_aggregation_alone_trains_all_rounds():
    cases = settings("surgical-table1", "table-1")
    early, late = (1000, 26, 1e-4), (150, None, None)
    for strategy in ("fedavg", "fedbnplus"):
        pair = [cases[f"{method}-{strategy}"] for method in ("partialloss", "surgagg")]
        stops = [tuple(keys[f"federation.{key}"] for key in ("rounds", "patience", "patience_margin")) for keys in pair]
        assert stops == [early, late]
        assert len({str([keys[f"{of}.aggregators"] for of in ("federation", "phases")]) for keys in pair}) == 1
        assert "phases.objective" not in pair[0]


def test_table_1_has_a_row_for_each_of_the_stopping_rules():
    def rows(scale):
        return [keys["labels"]["method"] for keys in settings("surgical-table1", "table-1", scale).values()]

    assert rows("paper")[-2:] == ["Vanilla, PartialLoss, SurgAgg FedAvg", "Vanilla, PartialLoss, SurgAgg FedBN+"]
    assert rows("linked")[-4:] == ["PartialLoss FedAvg", "PartialLoss FedBN+", "SurgAgg FedAvg", "SurgAgg FedBN+"]


def test_label_sets_of_the_figures_have_the_numbers_of_the_linked_code():
    numbers = {2: (4, 10), 3: (6, 6), 4: (4, 5), 5: (2, 3), 6: (0, 4), 8: (0, 3), 10: (0, 2)}
    found = {}
    for keys in settings("surgical-fig6", "by-clients").values():
        if keys["labels"]["method"] == "SurgAgg":
            assert keys["data.partition.clients"] == keys["labels"]["clients"]
            found[keys["labels"]["clients"]] = tuple(keys[f"data.scheme.{kind}"] for kind in ("shared", "unique"))
    assert found == numbers
    by_shared = settings("surgical-fig7", "by-shared").values()
    surgical = [keys for keys in by_shared if keys["labels"]["method"] == "SurgAgg"]
    assert [14 - keys["data.scheme.shared"] for keys in surgical] == [14, 13, 12, 10, 6, 2, 0]


def test_standard_deviations_over_classes_are_those_of_a_population():
    over_classes = tables_of(CONFIGS / "surgical").over_classes
    rows = [
        {"method": "SurgAgg FedBN+", "column": "c", "class": str(i), "auroc": v} for i, v in enumerate((0.6, 0.7, 0.8))
    ]
    table = pd.DataFrame(rows)
    assert f"0.700 ± {np.std([0.6, 0.7, 0.8]):.3f}" in over_classes("T", table, ddof=0)
    assert "standard deviation, ddof 0, over classes" in over_classes("T", table, ddof=0)
    assert "0.700 ± 0.100" in over_classes("T", table)
    scales = read_document(find("surgical-table1")).scales
    assert [scales[name].report.get("ddof", 1) for name in ("paper", "linked")] == [1, 0]


@pytest.mark.parametrize(("scale", "folder"), [("linked", "runs/linked"), ("paper", "runs")])
def test_its_runs_lie_apart(scale, folder, tmp_path):
    reproduced = Reproduction("surgical-table1", root=tmp_path, scale=scale, run_dir=tmp_path / "runs")
    assert reproduced.plans["table-1"].run_dir == str(tmp_path / folder)


TEXT, CODE = {"CODAPlus": ("average", None), "CODASCA": ("random", "always")}, {"CODASCA": ("centre", "auto")}


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("fdam-table3", "paper", TEXT),
        ("fdam-table3", "linked", CODE | {"CODAPlus": ("centre", None)}),
        ("fdam-fig4", "paper", TEXT),
        ("fdam-table5", "paper", {"CODASCA": TEXT["CODASCA"]}),
        ("fdam-table5", "linked", CODE),
    ],
)
def test_stages_of_fdam_are_those_of_the_text_at_paper_and_of_the_code_at_linked(name, scale, expected):
    """Algorithms 2 and 4: an average, a random round, and c = 0 in each stage."""
    planned, found = [*Reproduction(name, scale=scale).plans.values()][-1], {}
    federation = yaml.safe_load(Path(planned.config[0]).read_text())["federation"]
    for keys in planned.cases.values():
        written = {"federation.aggregators": federation.get("aggregators"), **planned.set, **keys}
        (each,) = written["federation.aggregators"]
        found[each["class_path"]] = (each["init_args"]["output"], each["init_args"].get("reset"))
    assert found == expected


def test_with_a_grid_gamma_is_laid_over_the_stages(tmp_path, no_pretrained):
    small = {"model.backbone": "resnet10t"}
    planned = Reproduction("fdam-fig4", root=tmp_path, scale="paper", set=small).plans["cifar100-30-k16"]
    run = one_run(replace(planned, cases={"codasca": planned.cases["codasca"]}, leave_out=[], starts=None))
    (each,) = yaml.safe_load(run.config)["federation"]["aggregators"]
    chosen = each["init_args"]
    assert (chosen["output"], chosen["reset"]) == ("random", "always")
    assert chosen["gamma"] in (0.001, 0.002, 0.0014285714285714286)


def test_localscgdam_has_the_recipe_of_its_reference(tmp_path, no_pretrained):
    small = {"model.backbone": "resnet10t"}
    planned = Reproduction("localscgdam-fig1", root=tmp_path, scale="linked", seeds=[0], set=small).plans["cifar10"]
    assert [each.case for each in combinations_of(planned)] == [
        f"{case}-p4" for case in ("localscgdam", "coda", "localsgdam", "localsgdm", "localsgdm_rl")
    ]
    of_data = [{k: v for k, v in keys.items() if k.startswith("data")} for keys in planned.cases.values()]
    assert all(keys == of_data[0] for keys in of_data)
    run = one_run(replace(planned, cases={"localscgdam": planned.cases["localscgdam"]}))
    found = yaml.safe_load(run.config)
    data = found["data"]["init_args"]
    assert (data["batch_size"], data["sampler"]["positives"], data["imratio"]) == (128, 0.2, 0.1)
    (composed,) = found["federation"]["aggregators"]
    assert (composed["init_args"]["inner"], composed["init_args"]["rho"]) == ("in_place", 0.1)
    saddle = found["model"]["init_args"]["objective"]["init_args"]
    assert (saddle["prior"], saddle["clamp"], saddle["dual_scale"]) == (0.2, True, pytest.approx(1 / (0.2 * 0.8)))
