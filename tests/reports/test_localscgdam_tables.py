"""LocalSCGDAM's tables and figures: their plans, the choice of rates, and what they make of made-up runs."""

import pandas as pd
import pytest
from refusals import refused
from reproduced import derived, table_of_plans

from fedlit.core.errors import ConfigError
from fedlit.experiment.grid import combinations_of
from fedlit.experiment.tuning import first_points_of, plans_of
from fedlit.reports.reproductions.means import choice_text
from fedlit.reports.reproductions.reproduction import Reproduction

RATES = {0.1, 0.3, 1, 3, 10}
METHODS = {
    "localscgdam": "LocalSCGDAM", "coda": "CoDA", "localsgdam": "LocalSGDAM", "localsgdm": "LocalSGDM",
    "localsgdm_rl": "LocalSGDM_RL",
}  # fmt: skip


def settings(planned, stage, points) -> dict[str, list]:
    return {case: [*combinations_of(each)] for case, each in plans_of(planned, stage, points).items()}


def test_every_method_is_tried_at_every_rate_with_a_seed_that_the_table_has_not(tmp_path):
    planned = Reproduction("localscgdam-table1", root=tmp_path).plans["table1"]
    tries = settings(planned, "try", first_points_of(planned))
    assert {case: {each.labels["method"] for each in of_case} for case, of_case in tries.items()} == {
        case: {method} for case, method in METHODS.items()
    }
    for case, of_case in tries.items():
        assert {each.case for each in of_case} == {f"rate-{rate}" for rate in RATES}
        for each in of_case:
            rate = each.labels["rate"] / (10 if "sgdm" in case else 1)
            assert each.settings["model.optimizer.lr"] == pytest.approx(rate)
            assert each.settings["federation.schedule.window"] == 8
    assert (planned.seeds_of_tries, planned.seeds) == ([1000], [0, 1, 2])


def test_the_chosen_rate_is_taken_in_every_column(tmp_path):
    planned = Reproduction("localscgdam-table1", root=tmp_path).plans["table1"]
    finals = settings(planned, "final", {case: [{"rate": 3}] for case in METHODS})
    for case, of_case in finals.items():
        assert [each.case for each in of_case] == [f"{case}-p{p}" for p in (4, 8, 16)]
        assert [each.settings["federation.schedule.window"] for each in of_case] == [4, 8, 16]
        for each in of_case:
            assert each.settings["model.optimizer.lr"] == pytest.approx(0.3 if "sgdm" in case else 3)
    assert planned.set["federation.schedule.iterations"] % 16 == 0


def test_differences_are_to_localscgdam_at_the_same_period_and_seed(tmp_path):
    table = Reproduction("localscgdam-table1", root=tmp_path, seeds=[0, 1])

    def of(each, seed):
        ahead = 0.05 if each.case == "localscgdam-p8" else 0.0
        rounds = {step: {"val/auroc_macro": value} for step, value in ((1, 0.5), (3, 0.8), (4, 0.7))}
        return {"test/federation/auroc_macro": 0.7 + ahead + 0.1 * seed}, rounds, 3

    report = table.report(table_of_plans(table.plans, tmp_path / "runs", of))
    lines = report.text.splitlines()
    assert lines[0] == "|  | p = 4 | p = 8 | p = 16 |"
    assert lines[2] == "| CIFAR10, LocalSCGDAM | 0.7500 ± 0.0707 | 0.8000 ± 0.0707 | 0.7500 ± 0.0707 |"
    assert lines[3].startswith("| CIFAR10, CoDA | 0.7500 ± 0.0707 (+0.0000) | 0.7500 ± 0.0707 (-0.0500) |")
    first = {METHODS[case]: each[0]["rate"] for case, each in first_points_of(table.plans["table1"]).items()}
    assert "CIFAR10: " + ", ".join(f"{method} {rate:g}" for method, rate in first.items()) in report.text
    assert len(report.tables["grid"]) == 25
    axes = [ax for ax in report.figures["figure"].axes if ax.axison]
    assert [ax.get_title() for ax in axes] == ["CIFAR10, p = 4", "CIFAR10, p = 8", "CIFAR10, p = 16"]
    assert all(len(ax.lines) == 5 for ax in axes)
    assert axes[1].lines[0].get_xdata().tolist() == [8, 24, 32]


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_figures_take_the_tries_of_the_table(scale, tmp_path):
    """So that their runs are shared."""
    table = Reproduction("localscgdam-table1", root=tmp_path, scale=scale).plans
    for figure, source in (("fig4", "catvsdog"), ("fig5", "stl10")):
        planned = Reproduction(f"localscgdam-{figure}", root=tmp_path, scale=scale).plans[figure]
        whole = table["table1" if scale == "laptop" else source]
        ours, theirs = (settings(each, "try", first_points_of(each)) for each in (planned, whole))
        for case in ours.keys() & theirs.keys():
            assert planned.experiment_of_tries(case) == whole.experiment_of_tries(case)
            assert [each.group for each in ours[case]] == [each.group for each in theirs[case]]
        assert [*ours] == (["localscgdam", "scaffold", "fedprox"] if figure == "fig5" else [*METHODS])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_figure_of_one_period_takes_runs_of_the_table(number, tmp_path):
    period = {1: 4, 2: 8, 3: 16}[number]
    figure, table = (
        Reproduction(f"localscgdam-{n}", root=tmp_path).plans["table1"] for n in (f"fig{number}", "table1")
    )
    points = {case: each[:1] for case, each in first_points_of(table).items()}
    assert first_points_of(figure) == first_points_of(table)
    assert settings(figure, "final", points) == {
        case: [each for each in of_case if each.labels["p"] == period]
        for case, of_case in settings(table, "final", points).items()
    }


@pytest.mark.parametrize(("only", "said"), [({"p": [5]}, ("only.p", "4, 8, 16", "found 5")), ({"q": [4]}, ("only.q",))])
def test_values_that_no_grid_has_are_refused(only, said, tmp_path):
    with refused(ConfigError, *said):
        Reproduction(derived(tmp_path, "localscgdam-table1", only=only), root=tmp_path)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("localscgdam-search", "laptop"),
        ("localscgdam-search", "paper"),
        ("localscgdam-search-narrow", "paper"),
        ("localscgdam-search-sampled", "laptop"),
    ],
)
def test_the_search_gives_each_method_as_many_tries_of_its_own_constants(name, scale):
    for planned in Reproduction(name, scale=scale).plans.values():
        assert planned.seeds == [0, 1, 2, 3, 4]
        points = first_points_of(planned)
        assert {len(each) for each in points.values()} == {8 if name.endswith("narrow") else 12}
        constants = {case: sorted(key.rpartition(".")[2] for key in each[0]) for case, each in points.items()}
        assert constants == {
            "localscgdam": ["alpha", "beta_x", "beta_y", "rate", "rho"],
            "localscgdam-in-place": ["alpha", "beta_x", "beta_y", "rate", "rho"],
            "coda": ["gamma", "rate"],
            "localsgdam": ["beta_x", "beta_y", "rate"],
            "localsgdm": ["momentum", "rate"],
            "localsgdm_rl": ["momentum", "rate"],
        }
        sampled = name.endswith("sampled")
        assert ("data.sampler" in planned.set) == sampled
        for case, keys in planned.cases.items():
            prior = keys["model.objective"] == {"class_path": "AUCSaddle", "init_args": {"prior": 0.2}}
            assert prior == (sampled and not case.startswith("localsgdm"))


def test_a_choice_at_the_end_of_its_range_is_reported():
    rows = [
        {"method": "CoDA", "rate": 0.1, "gamma": 0.05, "chosen": True},
        {"method": "CoDA", "rate": 0.03, "gamma": 0.002, "chosen": False},
        {"method": "LocalSGDM", "rate": 0.3, "momentum": 0.5, "chosen": True},
        {"method": "LocalSGDM", "rate": 0.3, "momentum": 0.0, "chosen": False},
        {"method": "LocalSGDM_RL", "rate": 30.0, "momentum": 0.99, "chosen": True},
    ]
    names = ["rate", "gamma", "momentum"]
    text = choice_text(pd.DataFrame(rows).assign(title="T"), "method", names, "The best: {chosen}.")
    assert text == (
        "The best: T: CoDA 0.1 (gamma 0.05), LocalSGDM 0.3 (momentum 0.5), LocalSGDM_RL 30 (momentum 0.99). At the end "
        "of their range, so a wider range may be better: T, CoDA: gamma 0.05; T, LocalSGDM_RL: rate 30, momentum 0.99."
    )


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_all_methods_start_from_one_body_and_are_tried_at_the_same_rates(scale, tmp_path):
    plans = Reproduction("localscgdam-pretrained", root=tmp_path, scale=scale, run_dir=tmp_path).plans
    assert [each.set["data.imratio"] for each in plans.values()] == [0.01, 0.1]
    assert len({each.bodies.experiment for each in plans.values()}) == 1
    for planned in plans.values():
        assert [*planned.cases] == [*METHODS]
        assert all({point["rate"] for point in each} == RATES for each in first_points_of(planned).values())
