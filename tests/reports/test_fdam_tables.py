"""FDAM's Tables 3, 4 and 5: their plans, what they make of made-up runs, and a whole small one."""

from dataclasses import replace

import pandas as pd
import pytest
import yaml
from reproduced import measured_run, printed

from fedlit.reports.reproductions import reproduction
from fedlit.reports.reproductions.report import measured
from fedlit.reports.reproductions.reproduction import Reproduction

LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Effusion")


def test_what_a_run_measured_is_its_test_and_the_best_round(tmp_path):
    rounds = {1: {"val/auroc_macro": 0.9, "client/a/auroc_macro": 0.8}, 2: {"val/auroc_macro": 0.7}}
    run = measured_run(tmp_path / "run", {"test/a/auroc_macro": 0.6}, rounds, best=1)
    assert measured(run) == {"val/auroc_macro": 0.9, "client/a/auroc_macro": 0.8, "test/a/auroc_macro": 0.6}


class TestTable3:
    def test_the_laptop_shares_the_runs_of_figure_1(self):
        (table,), figure = Reproduction("fdam-table3").parts(), Reproduction("fdam-fig1").parts()[-1]
        assert replace(table, cases={}) == replace(figure, cases={})
        assert len(figure.cases) == 5
        assert figure.cases.items() < table.cases.items()

    @pytest.mark.slow
    def test_the_papers_scale_is_the_papers(self, tmp_path, plan_some):
        paper = Reproduction("fdam-table3", root=tmp_path, scale="paper", seeds=[0])
        (part,) = paper.chosen.parts.values()
        assert list(part.cases) == ["codaplus-1", "codaplus-512", "codasca-512", "codaplus-1024", "codasca-1024"]
        runs = plan_some(paper)["fdam-table3-chestxray-ih-grid-codasca"]
        assert [run.rounds for run in runs] == [40]  # rates are chosen at I = 512
        data = yaml.safe_load(runs[0].config)["data"]["init_args"]
        roots = {name: source["init_args"]["root"] for name, source in data["sources"].items()}
        folders = {"NIH": "NIH", "MIMIC": "MIMIC-CXR-JPG", "VinDr": "VinDr-CXR"}
        assert roots == {name: str(tmp_path / folders.get(name, name)) for name in roots}
        assert len(roots) == 5
        assert data["partition"]["init_args"]["clients"] == 16
        assert data["split"] == [0.665, 0.285, 0.05]


class TestTables4And5:
    @pytest.mark.parametrize("scale", ["laptop", "paper"])
    @pytest.mark.parametrize("name", ["fdam-table4", "fdam-table5"])
    def test_each_k_has_one_more_organisation(self, name, scale):
        (part,) = Reproduction(name, scale=scale).chosen.parts.values()
        clients = [case.keys["federation.clients"] for case in part.cases.values()]
        assert clients == [clients[-1][:k] for k in (1, 2, 3, 4, 5)]
        assert part.body.settings["federation.clients"] == clients[0]
        assert clients[-1] == ["CheXpert", "NIH", "PadChest", "MIMIC", "VinDr"] or scale == "laptop"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "scale", "backbone"),
        [
            ("fdam-table4", "laptop", "mobilenetv3_small_050"),
            ("fdam-table4", "paper", "densenet121.tv_in1k"),
            ("fdam-table5", "paper", "densenet161.tv_in1k"),
        ],
    )
    def test_their_runs_are_valid(self, name, scale, backbone, tmp_path, plan_some):
        (body,), runs = plan_some(
            Reproduction(name, root=tmp_path if scale == "paper" else None, scale=scale, seeds=[0]), 1, slice(-1, None)
        ).values()
        first, last = yaml.safe_load(body.config), yaml.safe_load(runs[-1].config)
        assert first["model"]["init_args"]["objective"]["class_path"].endswith("BCE")
        assert last["model"]["init_args"]["objective"]["class_path"].endswith("AUCSaddle")
        assert {config["model"]["init_args"]["backbone"] for config in (first, last)} == {backbone}
        assert first["data"] == last["data"]
        assert runs[-1].rounds == (16 if scale == "laptop" else 157)  # the last that is tried has I = 128
        target = last["data"]["init_args"]["sources"]
        assert scale == "laptop" or target["CheXpert"]["init_args"]["official_split"] is True

    def test_the_average_is_over_findings_and_differences_are_to_the_target_alone(self, tmp_path):
        runs = []
        for k in (1, 2):
            for seed in (0, 1):
                auroc = {f"test/held-out/auroc/{c}": 0.6 + 0.1 * k + 0.01 * i for i, c in enumerate(LABELS)}
                folder = measured_run(tmp_path / f"{k}{seed}", auroc)
                runs.append({"K": k, "seed": seed, "directory": folder})
        table = Reproduction("fdam-table4").report(pd.DataFrame(runs)).tables["table"].set_index(["row", "column"])
        assert table.loc[("K = 1", "average"), "mean"] == pytest.approx(0.72)
        assert table.loc[("K = 2", "average"), "difference"] == pytest.approx(0.1)
        assert table.loc[("K = 2", "Edema (C1)"), "mean"] == pytest.approx(0.81)

    def test_the_papers_scale_reads_the_targets_validation(self, tmp_path):
        labels = [*LABELS[:-1], "Pleural Effusion"]
        validated = {step: {f"client/CheXpert/auroc/{c}": 0.8 + 0.01 * step for c in labels} for step in (1, 2, 3)}
        run = measured_run(tmp_path / "run", {}, validated, best=2)
        table = {"part": "fdam-table5-paper", "K": 1, "seed": 0, "directory": run}
        tried = {"part": "fdam-table5-paper-grid-1", "title": "CheXpert", "K": 1, "directory": run}
        shown = [{"client/CheXpert/auroc_macro": value} for value in (0.7, 0.9, 0.8)]
        of_tries = [
            tried | {"rate": rate, "I": window, "directory": measured_run(tmp_path / f"{rate}", {}, {1: metrics}, 1)}
            for (rate, window), metrics in zip(((0.1, 16), (0.01, 64), (0.001, 128)), shown, strict=True)
        ]
        paper = Reproduction("fdam-table5", root=tmp_path, scale="paper")
        made = paper.report(pd.DataFrame([table, *of_tries]))
        assert "CheXpert: 1 0.01 (I 64)" in made.text
        (part,) = paper.following(pd.DataFrame([t | {"K": k} for k in range(1, 6) for t in of_tries]))
        keys = part.cases["k3"].keys
        assert (keys["model.optimizer.lr"], keys["federation.schedule.init_args.window"]) == (0.01, 64)
        assert made.tables["values"]["auroc"].tolist() == pytest.approx([0.82] * 6)
        assert "CheXpert's validation set" in made.text


def test_all_runs_start_from_the_body_and_the_report_holds_them(tmp_path, monkeypatch):
    """The whole of a reproduction but the training."""
    sweeps = []

    def finished(sweep, jobs, console):
        sweeps.append(sweep)
        rows = []
        for number, (case, seed) in enumerate((c, s) for c in sweep.cases or [""] for s in sweep.seeds):
            auroc = {f"test/held-out/auroc/{c}": 0.7 + 0.001 * number for c in LABELS}
            run = measured_run(tmp_path / f"{sweep.experiment}-{case}-{seed}", auroc)
            rows.append({"name": run.name, "case": case, "seed": seed, "status": "finished", "best_round": 1})
            rows[-1]["directory"] = str(run)
        return pd.DataFrame(rows)

    monkeypatch.setattr(reproduction, "run_sweep", finished)
    printed(Reproduction("fdam-table4", seeds=[0, 1], output=tmp_path / "out"))
    body, runs = sweeps
    assert body.seeds == [0, 1]
    assert runs.weights == {seed: str(tmp_path / f"fdam-table4-laptop-body--{seed}") for seed in (0, 1)}
    assert runs.metric == "test/held-out/auroc_macro"
    ours, published = (tmp_path / "out" / "fdam-table4" / "report.md").read_text().split("## Published")
    assert ours.count("| K = ") == 5
    assert "Seeds: 0, 1, each with its own draw of what the data do not fix." in ours
    assert "0.9376" in published
    assert "0.9376" not in ours
    assert len(pd.read_csv(tmp_path / "out" / "fdam-table4" / "values.csv")) == 5 * 2 * 6
