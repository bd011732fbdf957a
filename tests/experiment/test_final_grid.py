"""Tunings whose final runs have a grid, and whose tries have an experiment of their own."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import one_parser
from rich.console import Console
from sweeps import write

from fedlit.core.errors import ConfigError
from fedlit.experiment.plan import Plan, load_plan
from fedlit.experiment.tuning import first_points_of, load_tuning, run_tuning, runs_of
from fedlit.reports.tuning import write_tuning_report
from fedlit.tracking.run import Result

pytestmark = pytest.mark.usefixtures("folder")

RATES = {0.1: {"model.lr": 0.1}, 1: {"model.lr": 1.0}}
TENTHS = {0.1: {"model.lr": 0.01}, 1: {"model.lr": 0.1}}
TUNE = {
    "experiment": "windows",
    "config": ["base.yaml"],
    "cases": {
        "fedavg": {"labels": {"method": "FedAvg+"}},
        "prox": {
            "federation.aggregators": ["FedProx"],
            "ranges": {"Rate": TENTHS, "federation.aggregators.mu": [0, 1]},
        },
    },
    "grid": {"federation.rounds": [2, 3]},
    "names": "{case}-{rounds}",
    "leave_out": ["prox-2"],
    "ranges": {"Rate": RATES},
    "tries": 2,
    "rule": {"seeds": [100], "experiment": "{experiment}-grid-{case}", "set": {"federation.rounds": 4}},
    "seeds": [0, 1],
}


def tuned(folder: Path, **changes: object) -> Plan:
    return load_tuning(write(folder, TUNE | changes))


def settings(run) -> tuple[float, int]:
    config = yaml.safe_load(run.config)
    return config["model"]["init_args"]["lr"], config["federation"]["rounds"]


def test_tries_are_named_by_their_values_in_an_experiment_of_each_method(folder: Path):
    plan = tuned(folder)
    tries = runs_of(plan, "try", first_points_of(plan), one_parser())
    assert {str(run.directory) for run in tries["fedavg"]} == {
        f"runs/windows-grid-fedavg/rate-{rate},seed=100" for rate in (0.1, 1)
    }
    for run in tries["prox"]:
        config = yaml.safe_load(run.config)
        rate, mu = run.labels["Rate"], config["federation"]["aggregators"][0]["init_args"]["mu"]
        assert run.directory == Path(f"runs/windows-grid-prox/rate-{rate}-mu-{mu:g},seed=100")
        assert settings(run) == (TENTHS[rate]["model.lr"], 4)
        assert (config["experiment"], config["name"]) == ("windows-grid-prox", run.directory.name)
    assert len({run.name for runs in tries.values() for run in runs}) == 4


def test_final_runs_take_the_chosen_setting_at_every_value_of_the_grid(folder: Path):
    plan = tuned(folder)
    assert plan.metric == "test/federation/auroc_macro"  # no point of the grid is chosen
    chosen = {case: [points[1]] for case, points in first_points_of(plan).items()}
    finals = runs_of(plan, "final", chosen, one_parser())
    assert [run.name for runs in finals.values() for run in runs] == [
        f"{case},seed={seed}" for case in ("fedavg-2", "fedavg-3", "prox-3") for seed in (0, 1)
    ]
    for case, keys in (("fedavg", RATES), ("prox", TENTHS)):
        for run in finals[case]:
            assert settings(run) == (keys[chosen[case][0]["Rate"]]["model.lr"], run.labels["rounds"])
            assert run.directory.parent == Path("runs/windows")
    assert finals["fedavg"][0].labels["method"] == "FedAvg+"


def test_without_names_tries_and_final_runs_are_named_as_in_other_tunings(folder: Path):
    plan = tuned(folder, names=None, leave_out=None, rule={"seeds": [100]}, seeds=[0], cases={"fedavg": {}})
    points = first_points_of(plan)
    tries = runs_of(plan, "try", points, one_parser())["fedavg"]
    assert {run.name for run in tries} == {"fedavg,Rate=0.1,seed=100", "fedavg,Rate=1,seed=100"}
    finals = runs_of(plan, "final", {case: each[:1] for case, each in points.items()}, one_parser())["fedavg"]
    rate = points["fedavg"][0]["Rate"]
    assert [run.name for run in finals] == [f"fedavg,Rate={rate},rounds={n},seed=0" for n in (2, 3)]


def test_it_runs_tries_of_the_same_name_and_the_table_and_the_report_have_all_runs(folder: Path, monkeypatch):
    def run_jobs(jobs, at_once, started, ended, *_):
        for job in jobs:
            started(job)
            good = "rate-1" in str(job.log)
            (job.log.parent / "metrics.csv").write_text(f"step,key,value\n2,val/auroc_macro,{0.5 + good / 4}\n")
            (job.log.parent / "config.yaml").write_text((job.log.parent / ".wanted.yaml").read_text())
            Result(4 if "grid" in str(job.log) else 2, 2, 1.0, {"test/federation/auroc_macro": 0.8}).write(
                job.log.parent
            )
            ended(job, 0, False)
        return 0

    monkeypatch.setattr("fedlit.experiment.sweep.run_jobs", run_jobs)
    plan = tuned(folder)
    methods, finals = run_tuning(plan, 1, Console(quiet=True))
    assert [each.points[each.chosen[0].place]["Rate"] for each in methods] == [1, 1]
    table = pd.read_csv(plan.table)
    assert (len(table), len(finals)) == (4 + 6, 6)
    assert table["name"].is_unique
    assert table.loc[table["stage"] == "try", "chosen"].tolist().count(True) == 2
    assert set(table.loc[table["stage"] == "final", "Rate"]) == {1}
    text = write_tuning_report(plan, methods, finals, folder / "out")
    for name in ("fedavg-2", "fedavg-3", "prox-3"):
        assert f"| {name} | 0.8000 | 0.0000 | 2/2 |" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rule": {"experiment": "tries"}}, ("rule.experiment", "{case}", "found tries")),
        ({"rule": {"experiment": "{method}"}}, ("rule.experiment", "experiment and case", "{method}")),
        ({"rule": {"experiment": "a/{case}"}}, ("rule.experiment", "a/fedavg")),
        ({"rule": {"set": {"seed": 1}}}, ("seed",)),
        ({"rule": {"by": "seed"}, "names": None}, ("grid", "by: seed")),
        ({"rule": {"by": "seed"}, "grid": None}, ("names", "by: seed")),
        ({"ranges": {"Rate": {0.1: {"model.lr": 0.1}}}}, ("ranges.Rate", "found only 0.1")),
        ({"ranges": {"Rate": {0.1: {"model.lr": 0.1}, 1: 1}}}, ("ranges.Rate", "found 0.1")),
        ({"baselines": ["pooled"]}, ("baselines",)),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, change: dict, said: tuple):
    with refused(ConfigError, *said):
        tuned(folder, **change)


def test_a_mistake_in_the_final_runs_ends_the_command_before_the_tries(folder: Path, fedlit_cli):
    write(folder, TUNE | {"leave_out": ["prox-4"]})
    fedlit_cli("tune --config sweep.yaml").refused("leave_out", "fedavg-2", "found prox-4", code=2)
    assert not (folder / "runs").exists()


def test_several_bases_are_laid_over_each_other_in_their_order(folder: Path):
    write(folder, TUNE)
    Path("linked").mkdir()
    Path("linked/mixed.yaml").write_text(yaml.safe_dump({"ranges": None, "tries": None, "rule": None,
        "cases": {"fedavg": {"model.lr": 0.5}, "prox": {"ranges": None}}}))  # fmt: skip
    Path("linked/plan.yaml").write_text(json.dumps({"base": ["../sweep.yaml", "mixed.yaml"], "seeds": [7]}))
    plan = load_plan("linked/plan.yaml", "sweep")
    assert Path(plan.config[0]).resolve() == folder / "base.yaml"
    assert (plan.cases["fedavg"]["model.lr"], plan.seeds, plan.names) == (0.5, [7], "{case}-{rounds}")
    Path("linked/mixed.yaml").write_text("cases: {fedavg: {model.lrr: 0.5}}\n")
    plan = load_tuning("linked/plan.yaml")
    with refused(ConfigError, "mixed.yaml, line 1", "'lrr'"):
        runs_of(plan, "try", first_points_of(plan), one_parser())
