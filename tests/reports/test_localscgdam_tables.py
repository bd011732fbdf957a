"""LocalSCGDAM's Table 1 and Figures 4 and 5: their plans, the choice of rates, and what they make of made-up runs."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import table_of_runs

from fedlit.core.errors import ConfigError
from fedlit.reports.reproductions import rates
from fedlit.reports.reproductions.document import SweepPart
from fedlit.reports.reproductions.reproduction import Reproduction

NAMES = ("localscgdam-table1", "localscgdam-fig4", "localscgdam-fig5")
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
BEST = {"LocalSCGDAM": 0.3, "CoDA": 1.0, "LocalSGDAM": 0.3, "LocalSGDM": 3.0, "LocalSGDM_RL": 10.0}


def rows(part: SweepPart, folder: Path, validation, test) -> pd.DataFrame:
    """What the runs of a part leave; validation and test AUROC are functions of a case's labels and the seed."""

    def measured(part, name, seed):
        best, case = validation(part.cases[name], seed), part.cases[name]
        by_round = {step: {"val/auroc_macro": value} for step, value in ((1, 0.5), (3, best), (4, best - 0.1))}
        return {"test/federation/auroc_macro": test(case, seed)}, by_round, 3

    return table_of_runs([part], folder, measured)


@pytest.fixture
def tried(tmp_path):
    """The grid of the laptop's scale, in which test AUROC would choose other rates than validation does."""

    def validation(case, seed):
        return 0.8 if case.labels["rate"] == BEST[case.labels["method"]] else 0.7

    parts = Reproduction("localscgdam-table1", root=tmp_path).parts()
    return pd.concat([rows(part, tmp_path, validation, lambda case, seed: case.labels["rate"] / 2) for part in parts])


def test_every_method_is_tried_at_every_rate_with_a_seed_that_the_table_has_not(tmp_path):
    table = Reproduction("localscgdam-table1", root=tmp_path)
    parts = table.parts()
    assert [[case.labels for case in part.cases.values()] for part in parts] == [
        [{"method": method, "rate": rate} for rate in RATES] for method in BEST
    ]
    assert [part.seeds for part in parts] == [[1000]] * 5
    assert not set(table.seeds) & {1000}
    windows = {case.keys["federation.schedule.init_args.window"] for part in parts for case in part.cases.values()}
    assert windows == {8}


def test_the_rate_that_is_best_in_validation_is_taken_in_every_column(tmp_path, tried):
    (part,) = Reproduction("localscgdam-table1", root=tmp_path).following(tried)
    assert part.seeds is None
    assert len(part.cases) == 15
    for case in part.cases.values():
        method = case.labels["method"]
        assert case.labels["rate"] == BEST[method]
        assert case.keys["model.optimizer.lr"] == pytest.approx(BEST[method] / (10 if "SGDM" in method else 1))
    periods = [case.keys["federation.schedule.init_args.window"] for case in part.cases.values()]
    assert periods == [4] * 5 + [8] * 5 + [16] * 5
    assert part.settings["federation.schedule.init_args.iterations"] % 16 == 0
    assert not any("federation.schedule.init_args.iterations" in case.keys for case in part.cases.values())


def test_of_equal_rates_the_smallest_is_taken(tmp_path):
    table = Reproduction("localscgdam-table1", root=tmp_path)
    runs = [rows(part, tmp_path, lambda *_: 0.7, lambda *_: 0.5) for part in table.parts()]
    (part,) = table.following(pd.concat(runs))
    assert {case.labels["rate"] for case in part.cases.values()} == {RATES[0]}


def test_a_rate_that_diverges_is_no_choice(tmp_path, tried):
    """A run that fails leaves no row."""
    left = tried[(tried["method"] != "CoDA") | (tried["rate"] != BEST["CoDA"])]
    (part,) = Reproduction("localscgdam-table1", root=tmp_path).following(left)
    assert {case.labels["rate"] for case in part.cases.values() if case.labels["method"] == "CoDA"} == {RATES[0]}
    with refused(ConfigError, "CoDA", "CIFAR10"):
        Reproduction("localscgdam-table1", root=tmp_path).following(tried[tried["method"] != "CoDA"])


def test_differences_are_to_localscgdam_at_the_same_period_and_seed(tmp_path, tried):
    table = Reproduction("localscgdam-table1", root=tmp_path, seeds=[0, 1])
    (part,) = table.following(tried)

    def test(case, seed):
        ahead = 0.05 if case.labels["method"] == "LocalSCGDAM" and case.labels["column"] == "p = 8" else 0.0
        return 0.7 + ahead + 0.1 * seed

    runs = pd.concat([tried, rows(part, tmp_path, lambda *_: 0.75, test)], ignore_index=True)
    report = table.report(runs)
    lines = report.text.splitlines()
    assert lines[0] == "|  | p = 4 | p = 8 | p = 16 |"
    assert lines[2] == "| CIFAR10, LocalSCGDAM | 0.7500 ± 0.0707 | 0.8000 ± 0.0707 | 0.7500 ± 0.0707 |"
    assert lines[3].startswith("| CIFAR10, CoDA | 0.7500 ± 0.0707 (+0.0000) | 0.7500 ± 0.0707 (-0.0500) |")
    assert "LocalSCGDAM 0.3, CoDA 1, LocalSGDAM 0.3, LocalSGDM 3, LocalSGDM_RL 10" in report.text
    assert len(report.tables["grid"]) == 25
    axes = [ax for ax in report.figures["figure"].axes if ax.axison]
    assert [ax.get_title() for ax in axes] == ["CIFAR10, p = 4", "CIFAR10, p = 8", "CIFAR10, p = 16"]
    assert all(len(ax.lines) == 5 for ax in axes)
    assert axes[1].lines[0].get_xdata().tolist() == [8, 24, 32]


def test_figures_take_the_grid_of_the_table(tmp_path):
    """So that their runs are shared."""
    table = {part.experiment: part for part in Reproduction("localscgdam-table1", root=tmp_path).parts()}
    assert {part.experiment: part for part in Reproduction("localscgdam-fig4", root=tmp_path).parts()} == table
    own = Reproduction("localscgdam-fig5", root=tmp_path).parts()
    assert [part.experiment.rpartition("-")[2] for part in own] == ["localscgdam", "scaffold", "fedprox"]
    assert table[own[0].experiment] == own[0]


@pytest.mark.parametrize(
    ("name", "period"), [("localscgdam-fig1", 4), ("localscgdam-fig2", 8), ("localscgdam-fig3", 16)]
)
def test_a_figure_of_one_period_takes_runs_of_the_table(name, period, tmp_path, tried):
    figure, table = Reproduction(name, root=tmp_path), Reproduction("localscgdam-table1", root=tmp_path)
    (own,), (whole,) = figure.following(tried), table.following(tried)
    assert own.experiment == whole.experiment
    assert own.cases == {k: case for k, case in whole.cases.items() if case.labels["column"] == f"p = {period}"}
    assert figure.parts() == table.parts()


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_runs_of_the_laptop_are_valid(name, tmp_path, plan_some):
    for runs in plan_some(Reproduction(name, root=tmp_path, run_dir=tmp_path)).values():
        assert {run.rounds for run in runs} == {48}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_runs_of_the_papers_scale_are_valid(name, tmp_path, plan_some):
    planned = plan_some(Reproduction(name, root=tmp_path, scale="paper", run_dir=tmp_path))
    configs = {part: yaml.safe_load(runs[0].config) for part, runs in planned.items()}
    assert {runs[0].rounds for runs in planned.values()} == {2500}
    backbones = {
        config["data"]["class_path"].rpartition(".")[2]: config["model"]["init_args"]["backbone"]
        for config in configs.values()
    }
    expected = {"localscgdam-fig4": {"CATvsDOG": "resnet20_cifar"}, "localscgdam-fig5": {"STL10": "resnet20_cifar"}}
    others = {"FashionMNIST": "small_cnn", "Melanoma": "densenet121"}
    names = ("CATvsDOG", "CIFAR10", "CIFAR100", "STL10", "FashionMNIST", "Melanoma")
    table = {data: others.get(data, "resnet20_cifar") for data in names}
    assert backbones == expected.get(name, table)
    folders = {config["data"]["init_args"]["root"] for config in configs.values()}
    assert folders == ({str(tmp_path / data) for data in names} if name == NAMES[0] else {str(tmp_path)})


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", ["localscgdam-search", "localscgdam-search-narrow", "localscgdam-search-sampled"])
def test_the_search_gives_each_method_as_many_tries_of_its_own_constants(name, scale):
    reproduced = Reproduction(name, scale=scale)
    assert reproduced.seeds == [0, 1, 2, 3, 4]
    tried: dict[str, set] = {}
    for part in reproduced.parts():
        assert len(part.cases) == (8 if name.endswith("narrow") else 12)
        (method,) = {case.labels["method"] for case in part.cases.values()}
        tried.setdefault(method, set()).update(key for case in part.cases.values() for key in case.labels)
    assert {method: sorted(keys - {"method"}) for method, keys in tried.items()} == {
        "LocalSCGDAM": ["alpha", "beta_x", "beta_y", "rate", "rho"],
        "LocalSCGDAM in place": ["alpha", "beta_x", "beta_y", "rate", "rho"],
        "CoDA": ["gamma", "rate"],
        "LocalSGDAM": ["beta_x", "beta_y", "rate"],
        "LocalSGDM": ["momentum", "rate"],
        "LocalSGDM_RL": ["momentum", "rate"],
    }
    sampled = name.endswith("sampled")
    for part in reproduced.chosen.parts.values():
        assert ("data.sampler" in part.settings) == sampled
        for case in part.cases.values():
            prior = case.keys["model.objective"]
            saddle = not case.labels["method"].startswith("LocalSGDM")
            assert (prior == {"class_path": "AUCSaddle", "init_args": {"prior": 0.2}}) == (sampled and saddle)


def test_a_choice_at_the_end_of_its_range_is_reported():
    found = Reproduction("localscgdam-search").chosen.rates
    tried = pd.DataFrame(
        [
            {"title": "T", "method": "CoDA", "rate": 0.1, "gamma": 0.05, "validation": 0.7},
            {"title": "T", "method": "CoDA", "rate": 0.1, "gamma": 0.002, "validation": 0.6},
            {"title": "T", "method": "LocalSGDM", "rate": 0.3, "momentum": 0.5, "validation": 0.8},
            {"title": "T", "method": "LocalSGDM_RL", "rate": 30.0, "momentum": 0.99, "validation": 0.8},
        ]
    )
    names = ["title", "method", "rate", *found.others]
    text = rates.choice_text(tried.reindex(columns=[*names, "validation"]), found)
    assert text.endswith(
        "At the end of their range, so a wider range may be better: "
        "T, CoDA: gamma 0.05; T, LocalSGDM_RL: rate 30, momentum 0.99."
    )
    assert "At the end" not in rates.choice_text(tried[2:3].reindex(columns=[*names, "validation"]), found)


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
