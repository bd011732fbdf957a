"""FDAM's figures and tables: their plans, what they make of made-up runs, and a whole reproduction but the training."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import timm
import yaml
from reproduced import measured_run, one_run, printed, stages_of, table_of_plans

from fedlit.experiment.grid import combinations_of
from fedlit.experiment.tuning import first_points_of
from fedlit.reports.reproductions import reproduction
from fedlit.reports.reproductions.report import measured
from fedlit.reports.reproductions.reproduction import Reproduction

LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Effusion")
FIGURES = ("fdam-fig1", "fdam-fig2", "fdam-fig3", "fdam-fig4")


def test_what_a_run_measured_is_its_test_and_the_best_round(tmp_path):
    rounds = {1: {"val/auroc_macro": 0.9, "client/a/auroc_macro": 0.8}, 2: {"val/auroc_macro": 0.7}}
    run = measured_run(tmp_path / "run", {"test/a/auroc_macro": 0.6}, rounds, best=1)
    assert measured(run) == {"val/auroc_macro": 0.9, "client/a/auroc_macro": 0.8, "test/a/auroc_macro": 0.6}


class TestFigures:
    def test_figures_of_the_appendix_share_their_runs_with_others(self, tmp_path):
        made = {name: Reproduction(name, root=tmp_path).plans for name in FIGURES}
        assert made["fdam-fig2"] == {"cifar10": made["fdam-fig1"]["cifar10"]}
        assert made["fdam-fig3"] == made["fdam-fig4"]
        assert "cifar10-30" not in made["fdam-fig1"]
        own = [each.experiment for n in FIGURES for each in Reproduction(n, scale="paper").plans.values()]
        assert len(set(own)) == 8

    def test_every_method_has_the_same_number_of_tries_and_settings_of_its_own(self):
        planned = Reproduction("fdam-fig1", scale="paper").plans["imagenet-10-k16"]
        of_coda, of_codasca = first_points_of(planned).values()
        assert len(of_coda) == len(of_codasca) == 27
        assert [*of_coda[0]] == ["rate", "gamma", "T0"]
        assert {point["federation.aggregators.eta_g"] for point in of_codasca} == {1.1, 1, 0.99, 0.999}

    @pytest.mark.slow
    def test_what_is_tried_reaches_the_algorithm_and_the_schedule(self, tmp_path, no_pretrained):
        planned = Reproduction("fdam-fig1", root=tmp_path, scale="paper").plans["imagenet-10-k16"]
        run, point = one_run(planned), first_points_of(planned)["codasca"][-1]
        federation = yaml.safe_load(run.config)["federation"]
        codasca, schedule = federation["aggregators"][0]["init_args"], federation["schedule"]["init_args"]
        assert (codasca["gamma"], codasca["eta_g"]) == (point["gamma"], point["federation.aggregators.eta_g"])
        assert (schedule["decay_every"], schedule["window"]) == (point["T0"], 32)
        assert (run.seed, run.directory.parent.name) == (1000, "fdam-imagenet-ih-10-k16-grid-codasca")


class TestTable3:
    def test_the_laptop_shares_the_runs_of_figure_1(self):
        table, figure = Reproduction("fdam-table3").plans["phantom-table3"], Reproduction("fdam-fig1").plans["phantom"]
        assert replace(table, file=None, grid={}, leave_out=[]) == replace(figure, file=None, grid={}, leave_out=[])
        ours, theirs = ({each.case for each in combinations_of(planned)} for planned in (table, figure))
        assert len(theirs) == 5
        assert theirs < ours

    @pytest.mark.slow
    def test_the_papers_scale_is_the_papers(self, tmp_path, no_pretrained):
        (planned,) = Reproduction("fdam-table3", root=tmp_path, scale="paper", seeds=[0]).plans.values()
        finals = [of_case for stage, of_case in stages_of(planned) if stage == "final"]
        found = [each for of_case in finals for each in combinations_of(of_case)]
        cases = Counter((each.origin, each.labels["window"]) for each in found)
        of_codasca, of_codaplus = ([(method, each) for each in (512, 1024)] for method in ("codasca", "codaplus"))
        assert cases == dict.fromkeys([("codaplus", 1), *of_codaplus, *of_codasca], 5)
        assert all(len(each.settings["data.classes"]) == 1 for each in found)  # binary tasks
        run = one_run(planned)
        assert run.rounds == 40  # rates are chosen at I = 512
        data = yaml.safe_load(run.config)["data"]["init_args"]
        assert len(data["classes"]) == 5
        roots = {name: source["init_args"]["root"] for name, source in data["sources"].items()}
        folders = {"NIH": "NIH", "MIMIC": "MIMIC-CXR-JPG", "VinDr": "VinDr-CXR"}
        assert roots == {name: str(tmp_path / folders.get(name, name)) for name in roots}
        assert len(roots) == 5
        assert data["partition"]["init_args"]["clients"] == 16
        assert data["split"] == [0.665, 0.285, 0.05]


class TestTables4And5:
    @pytest.mark.parametrize(
        ("name", "scale"), [("fdam-table5", "laptop"), ("fdam-table5", "paper"), ("fdam-table4", "linked")]
    )
    def test_each_k_has_one_more_organisation(self, name, scale):
        for planned in Reproduction(name, scale=scale).plans.values():
            clients = [case["federation.clients"] for case in planned.cases.values()]
            assert clients == [clients[-1][:k] for k in (1, 2, 3, 4, 5)]
            assert planned.bodies.set["federation.clients"] == clients[0]
            assert timm.is_model(planned.set["model.backbone"])
            assert planned.bodies.set["model.backbone"] == planned.set["model.backbone"]
            assert clients[-1] == ["CheXpert", "NIH", "PadChest", "MIMIC", "VinDr"] or scale == "laptop"

    def test_the_average_is_over_findings_and_differences_are_to_the_target_alone(self, tmp_path):
        def of(each, seed):
            k = each.labels["K"]
            return ({f"test/held-out/auroc/{c}": 0.6 + 0.1 * k + 0.01 * i for i, c in enumerate(LABELS)},)

        made = Reproduction("fdam-table4")
        table = made.report(table_of_plans(made.plans, tmp_path, of)).tables["table"].set_index(["row", "column"])
        assert table.loc[("K = 1", "average"), "mean"] == pytest.approx(0.72)
        assert table.loc[("K = 2", "average"), "difference"] == pytest.approx(0.1)
        assert table.loc[("K = 2", "Edema (C1)"), "mean"] == pytest.approx(0.81)

    def test_the_papers_scale_reads_the_targets_validation(self, tmp_path):
        labels = [*LABELS[:-1], "Pleural Effusion"]

        def of(each, seed):
            validated = {s: {f"client/CheXpert/auroc/{c}": 0.8 + 0.01 * s for c in labels} for s in (1, 2, 3)}
            return {}, validated, 2

        made = Reproduction("fdam-table5", root=tmp_path, scale="paper")
        runs = table_of_plans(made.plans, tmp_path / "runs", of)
        first = first_points_of(made.plans["target-table5"])["1"][0]
        report = made.report(runs)
        assert f"CheXpert: 1 {first['rate']:g} (I {first['I']}), 2 " in report.text
        assert set(report.tables["values"]["auroc"].round(6)) == {0.82}
        assert [*report.tables["grid"]] == ["title", "K", "rate", "I", "score", "chosen"]
        assert len(report.tables["grid"]) == 5 * 8
        assert "CheXpert's validation set" in report.text


def test_the_whole_of_a_reproduction_but_the_training(tmp_path, monkeypatch):
    made = Reproduction("fdam-table4", seeds=[0, 1], output=tmp_path / "out", run_dir=tmp_path / "runs")
    (planned,) = made.plans.values()
    assert planned.bodies.seeds == [0, 1]
    assert planned.metric == "test/held-out/auroc_macro"

    def finished(planned, jobs, console):
        auroc = {f"test/held-out/auroc/{c}": 0.7 for c in LABELS}
        runs = table_of_plans(made.plans, tmp_path / "runs", lambda *_: (auroc,))
        runs.drop(columns=["plan", "stage"]).assign(name=runs["case"], status="finished").to_csv(planned.table)

    planned.directory.mkdir(parents=True)
    monkeypatch.setattr(reproduction, "run_sweep", finished)
    monkeypatch.setattr(reproduction, "noted_opening", lambda _: "")
    printed(made)
    ours, published = (tmp_path / "out" / "fdam-table4" / "report.md").read_text().split("## Published")
    assert ours.count("| K = ") == 5
    assert "Seeds: 0, 1, each with its own draw of what the data do not fix." in ours
    assert "0.9376" in published
    assert "0.9376" not in ours
    assert len(pd.read_csv(tmp_path / "out" / "fdam-table4" / "values.csv")) == 5 * 2 * 6


def test_bodies_have_the_draw_of_their_seed_unless_one_draw_is_kept():
    """A body of another draw has trained on images that a run tests."""
    for given, seeds in (({}, [0, 4]), ({"data.seed": 0}, [0])):
        (planned,) = Reproduction("fdam-table3", seeds=[0, 4], set=given).plans.values()
        assert planned.bodies.seeds == seeds


def test_a_reproduction_gets_the_folder_above_its_data(tmp_path: Path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/train-00000-of-00001.parquet").write_text("x")
    planned = Reproduction("fdam-fig1", root=tmp_path).plans["cifar10"]
    assert next(combinations_of(planned)).settings["data.root"] == str(tmp_path / "pictures")
