"""Experiments that no paper has: one condition of a paper's claim varies, and all else is equal."""

import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import table_of_runs

from fedlit.reports.reproductions.document import HOME, find, read_document
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.reports.reproductions.seeds import SeedsReport

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
    assert ten.count("(+0.0000 ± 0.0000)") == 3
    assert "(**+0.0100 ± 0.0000**)" in ten


def test_runs_of_two_parts_are_never_one_row(sites):
    """They were pooled as six seeds of one."""
    reproduced, runs = sites
    with refused("report-row-twice", "seed 0", "'Hidden layer, K = 2, PartialLoss', '4 rounds'"):
        reproduced.report(pd.concat([runs, runs]))
    both = pd.concat([runs, runs.assign(title="Whole network")])
    rows = [len(reproduced.report(each).tables["table"]) for each in (runs, both)]
    assert rows[1] == 2 * rows[0]


def test_every_row_of_every_document_is_of_one_run_a_seed():
    seen = set()
    for name in (file.stem for file in HOME.glob("*/*-*.yaml")):
        document = read_document(find(name))
        for scale, chosen in document.scales.items():
            reproduced = Reproduction(name, scale=scale)
            reporter = reproduced._reporter()
            if not isinstance(reporter, SeedsReport):
                continue
            labels = [{"title": p.title} | case.labels for p in chosen.parts.values() for case in p.cases.values()]
            cells = [(reporter.row.format(**each), reporter.column.format(**each)) for each in labels]
            assert len(cells) == len(set(cells)), (name, scale)
            seen.add(name)
    assert {"fdam-fig1", "surgical-sites", "localscgdam-table1"} <= seen


def test_a_round_that_was_not_measured_is_an_error(sites):
    reproduced, runs = sites
    (runs["directory"][0] / "metrics.csv").write_text(f"step,key,value\n4,{AUROC},0.6\n")
    with refused("report-metric-missing", "report.rounds", "no 8", "4"):
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


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_all_methods_start_from_one_body_and_are_tried_at_the_same_rates(scale, tmp_path):
    reproduced = Reproduction("localscgdam-pretrained", root=tmp_path, scale=scale, run_dir=tmp_path)
    parts = reproduced.parts()
    assert len(parts) == 10
    assert len({part.body.experiment for part in parts}) == 1
    assert {tuple(case.labels["rate"] for case in part.cases.values()) for part in parts} == {
        (0.1, 0.3, 1.0, 3.0, 10.0)
    }
    ratios = [part.settings.get("data.imratio") or part.settings["data"]["init_args"]["imratio"] for part in parts]
    assert ratios == [0.01] * 5 + [0.1] * 5


def test_runs_on_fixed_features_can_be_planned(tmp_path, plan_some):
    planned = plan_some(Reproduction("localscgdam-pretrained", root=tmp_path, run_dir=tmp_path), 1, slice(0, 10, 5))
    trained = {name: yaml.safe_load(runs[0].config)["model"]["init_args"] for name, runs in planned.items()}
    assert {keys["trainable"] for name, keys in trained.items() if "body" not in name} == {"head"}
    assert {runs[0].rounds for name, runs in planned.items() if "body" not in name} == {256}
