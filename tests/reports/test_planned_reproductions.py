"""``fedlit reproduce`` of a document whose scale names plans: what is planned and run, and what ``tables.py`` gets."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import printed, table_of_plans

from fedlit.core.errors import ConfigError
from fedlit.experiment.plan import Plan
from fedlit.reports.reproductions import reproduction
from fedlit.reports.reproductions.reproduction import Reproduction

CONFIG = {
    "data": {"class_path": "PhantomCXR", "init_args": {"images": 90, "image_size": 16, "hospitals": 2}},
    "model": {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn"}},
    "federation": {"rounds": 1, "workers": 1},
    "logger": False,
}
SCAFFOLD = {"scaffold": {"federation.aggregators": ["Scaffold"]}}
RATES = {"model.optimizer.lr": [0.1, 0.01]}
TABLES = """
from pathlib import Path

from fedlit.reports.reproductions.report import Report

def make(runs, digits: int, config: Path = None, root=None):
    return Report(f"{len(runs)} runs, {digits} digits, {config}", {"counted": runs})

def broken(runs):
    return Report(f"{runs['metod']}", {})

def nothing(runs):
    print("no report")
"""


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A document with a sweep that starts from a body, and a tuning; its folder is the current one."""
    monkeypatch.chdir(tmp_path)
    Path("tables.py").write_text(TABLES)
    plan = {"config": ["small.yaml"], "seeds": [0, 1]}
    for name, written in {
        "small": CONFIG,
        "body": {"experiment": "body", "config": ["small.yaml"], "set": {"model.optimizer.lr": 0.01}},
        "windows": plan | {"experiment": "windows", "starts": "body.yaml", "cases": {"fedavg": {}}, "grid": RATES},
        "tries": plan | {"experiment": "tries", "cases": SCAFFOLD, "ranges": RATES, "sampler": "grid"},
    }.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(written, sort_keys=False))
    laptop = {"data": "PhantomCXR", "time": "seconds", "plans": ["windows.yaml", "tries.yaml"]}
    return {"shows": "windows and rates", "scales": {"laptop": laptop | {"report": {"digits": 3}}}}


def written(document: dict, **laptop: object) -> str:
    document["scales"]["laptop"] |= laptop
    Path("mine.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return "mine.yaml"


def finish(planned: Plan, *_: object) -> None:
    """Write the table of a plan and the directories of its runs, as the planner does."""
    runs = table_of_plans({"": planned}, Path("finished"), lambda *_: ({"val/auroc_macro": 0.5},))
    unknown = ["plan"] if planned.is_tuning else ["plan", "stage"]
    planned.directory.mkdir(parents=True)
    runs.drop(columns=unknown).assign(name=runs["case"], status="finished").to_csv(planned.table, index=False)


def test_the_runs_of_every_plan_are_planned_with_what_the_command_sets_and_the_report_says_it(document: dict):
    options = {"precision": "64-true", "accelerator": "cpu", "devices": 2, "workers": 3}
    given = {"data.images": 120, "tags.why": "mine"}
    made = Reproduction(written(document), seeds=[7], set=given, set_body={"data.images": 100}, **options)
    found = {experiment: [yaml.safe_load(run.config) for run in runs] for experiment, runs in made.plan().items()}
    assert {name: len(runs) for name, runs in found.items()} == {"body": 1, "windows": 2, "tries": 2}
    images = {name: {run["data"]["init_args"]["images"] for run in runs} for name, runs in found.items()}
    assert images == {"body": {100}, "windows": {120}, "tries": {120}}
    assert {name: {run["seed"] for run in runs} for name, runs in found.items()} == {
        "body": {7}, "windows": {7}, "tries": {100},
    }  # fmt: skip
    for run in (each for runs in found.values() for each in runs):
        shown = {key: run["fabric"][key] for key in options if key in run["fabric"]}
        assert shown | {"workers": run["federation"]["workers"]} == options
    assert made._set_by_hand()[:2] == [
        "Set by hand for all runs: data.images: 120, tags.why: mine.", "Set by hand for all bodies: data.images: 100.",
    ]  # fmt: skip


def test_a_dry_run_counts_bodies_sweeps_tries_and_final_runs(document: dict, fedlit_cli):
    """Each once, though two plans share an experiment and half of their runs."""
    more = {"base": "windows.yaml", "grid": {"model.optimizer.lr": [0.01, 0.001]}}
    Path("more.yaml").write_text(yaml.safe_dump(more))
    plans = ["windows.yaml", "more.yaml", "tries.yaml"]
    out = fedlit_cli(f"reproduce {written(document, plans=plans)} --dry_run true --seconds_per_step 0.1").succeeded()
    for row in ("| body | 2 | 0 | 2 | 6 |", "| windows | 6 | 0 | 2 | 18 |", "| tries | 4 | 0 | 2 | 12 |"):
        assert row in out
    assert not Path("runs").exists()


def test_the_report_is_made_of_one_table_of_the_runs_of_all_plans(document: dict, monkeypatch: pytest.MonkeyPatch):
    made = Reproduction(written(document, report={"digits": 2, "config": "small.yaml"}))
    monkeypatch.setattr(reproduction, "run_sweep", finish)
    monkeypatch.setattr(reproduction, "run_tuning", finish)
    monkeypatch.setattr(reproduction, "noted_opening", lambda _: "")
    text = printed(made)
    assert f"8 runs, 2 digits, {Path('small.yaml')}" in text
    runs = pd.read_csv("reproductions/mine/counted.csv", keep_default_na=False)
    assert [*runs][:2] == ["plan", "stage"]
    found = runs.groupby(["plan", "stage"]).size().to_dict()
    assert found == {("windows", ""): 4, ("tries", "try"): 2, ("tries", "final"): 2}
    assert "status" not in runs


@pytest.mark.parametrize(
    ("laptop", "mistake"),
    [
        ({"plans": ["none.yaml"]}, ("none.yaml",)),
        ({"plans": ["small.yaml"]}, ("small.yaml, line",)),
        ({"plans": ["windows.yaml", "./windows.yaml"]}, ("plans", "two of windows")),
        ({"plans": "windows.yaml"}, ("plans", "found 'windows.yaml'")),
        ({"report": {}}, ("report", "digits")),
        ({"report": {"digits": "three"}}, ("report.digits", "'three'")),
        ({"report": {"digit": 3}}, ("report.digit", "did you mean digits?")),
        ({"report": {"digits": 3, "root": "."}}, ("report.root",)),
        ({"report": {"digits": 3, "config": "none.yaml"}}, ("none.yaml",)),
        ({"report": {"make": "maker"}}, ("tables.py", "maker", "did you mean make?")),
    ],
)
def test_mistakes_are_refused_before_anything_trains(laptop: dict, mistake: tuple, document: dict):
    with refused(ConfigError, *mistake):
        Reproduction(written(document, **laptop))


@pytest.mark.parametrize(
    ("function", "mistake"),
    [("broken", ("tables.py, line 10", "KeyError", "metod")), ("nothing", ("tables.py", "nothing", "None"))],
)
def test_what_fails_inside_of_tables_is_one_line_with_its_place(function: str, mistake: tuple, document: dict):
    made = Reproduction(written(document, report={"make": function}))
    with refused(ConfigError, *mistake) as error:
        made.report(pd.DataFrame({"seed": [0]}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "line"), [("def make(", 1), ("import os\n1 / 0\n", 2)])
def test_tables_that_cannot_be_imported_are_named_with_their_line(text: str, line: int, document: dict):
    Path("tables.py").write_text(text)
    with refused(ConfigError, f"tables.py, line {line}"):
        Reproduction(written(document))
