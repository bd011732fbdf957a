"""Tunings: ranges and their draws, the plan, mistakes, the choice, and a tuning that is killed and continued."""

import json
import math
import os
import signal
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import one_parser
from rich.console import Console
from runs import Kept, Place, assert_same_run, wait_until
from sweeps import BASE, finish, write

from fedlit.core.errors import ConfigError
from fedlit.experiment.ranges import Choice, Span, at_edge, read_range
from fedlit.experiment.samplers import first_points, next_point
from fedlit.experiment.tuning import choose, first_points_of, load_tuning, run_tuning, runs_of
from fedlit.reports.tuning import best_by_tries, best_so_far, cost_of, edges, write_tuning_report
from fedlit.tracking.run import Result

pytestmark = pytest.mark.usefixtures("folder")

LR = "model.lr"
TUNE = {
    "experiment": "tuned",
    "config": ["base.yaml"],
    "cases": {
        "fedavg": {"federation.aggregators": ["FedAvg"]},
        "fedprox": {"federation.aggregators": ["FedProx"], "ranges": {"federation.aggregators.mu": [0.001, 0.01, 0.1]}},
    },
    "ranges": {LR: {"low": 0.001, "high": 1, "scale": "log"}},
    "tries": 4,
    "rule": {"metric": "val/auroc_macro", "seeds": [100]},
    "seeds": [0, 1],
}
GRID = {"sampler": "grid", "tries": None, "cases": {"fedavg": {}, "other": {"federation.rounds": 1}},
        "ranges": {LR: [0.1, 0.2]}}  # fmt: skip


def loaded(folder: Path, **changes: object):
    return load_tuning(write(folder, TUNE | changes))


def drawn(ranges: dict, tries: int, seed: int = 0) -> list[dict]:
    return first_points("random", ranges, tries, seed, "tries")


class TestDraws:
    @pytest.mark.parametrize(
        ("tries", "default", "seed"),
        [(1, None, 0), (1, 0.01, -1), (3, 0.01, 20240101), (8, None, -1), (11, 0.01, 0), (30, 0.01, -1), (30, None, 0)],
    )
    def test_every_part_of_every_range_is_hit_once(self, tries: int, default: float | None, seed: int):
        ranges = {LR: Span(0.001, 1, "log", default=default), "mu": Span(-1, 2)}
        points = drawn(ranges, tries, seed)
        scaled = {LR: [math.log10(point[LR]) / 3 + 1 for point in points], "mu": [(p["mu"] + 1) / 3 for p in points]}
        for shares in scaled.values():
            assert sorted(min(tries - 1, int(share * tries)) for share in shares) == list(range(tries))
        assert default is None or points[0][LR] == default
        assert all(float(f"{p[LR]:.3g}") == p[LR] for p in points)
        assert tries < 3 or points != drawn(ranges, tries, seed + 1)

    def test_values_of_a_list_and_integers_are_tried_equally_often(self):
        kinds = Choice(["a", 1, True, {"b": 0}], True)
        ranges = {"steps": Span(1, 3, integer=True, default=2), "kind": kinds, LR: Span(0, 1)}
        points = drawn(ranges, 12)
        assert [[str(point[key]) for point in points].count(text) for key, text in
                (("steps", "1"), ("steps", "2"), ("steps", "3"), ("kind", "a"), ("kind", "1"), ("kind", "True"))
                ] == [4, 4, 4, 3, 3, 3]  # fmt: skip
        assert (points[0]["steps"], points[0]["kind"]) == (2, True)

    def test_a_default_is_not_rounded(self):
        assert drawn({LR: Span(0, 1, default=0.123456)}, 3)[0] == {LR: 0.123456}

    def test_methods_share_the_draws_of_their_shared_ranges(self):
        both = drawn({LR: Span(1, 9), "mu": Span(0, 1, default=0.5)}, 5)
        assert [point[LR] for point in both] == [point[LR] for point in drawn({LR: Span(1, 9)}, 5)]

    @pytest.mark.parametrize("tries", range(1, 7))
    def test_points_are_never_repeated(self, tries: int):
        ranges = {"steps": Span(1, 3, integer=True), "mu": Choice([5, 6], 6)}
        points = drawn(ranges, tries)
        assert len({str(point) for point in points}) == tries
        assert points[0]["mu"] == 6

    def test_more_tries_than_there_are_points_are_refused(self):
        with refused(ConfigError, "tries", "most 6", "found 7"):
            drawn({"steps": Span(1, 3, integer=True), "mu": Choice([5, 6], 6)}, 7)
        with refused(ConfigError, "tries", "wider"):
            drawn({LR: Span(0.1, 0.1001)}, 9)

    def test_a_grid_begins_with_the_defaults(self):
        ranges = {"steps": Choice([1, 2, 3], 2), "mu": Choice([5, True], True)}
        points = first_points("grid", ranges, 6, 0, "tries")
        assert points[0] == {"steps": 2, "mu": True}
        assert sorted(map(str, points)) == sorted(str({"steps": n, "mu": mu}) for n in (1, 2, 3) for mu in (5, True))


class TestRanges:
    @pytest.mark.parametrize(
        ("value", "mistake"),
        [
            ([], (ConfigError, "key: ", "found none")),
            ([0.1], (ConfigError, "found only 0.1")),
            ([0.1, 0.2, 0.1], (ConfigError, "key: ", "0.1")),
            (0.1, (ConfigError, "key: ", "found 0.1")),
            ({"low": 1}, (ConfigError, "key.high", "nothing")),
            ({"low": 1, "hihg": 2}, (ConfigError, "key: ", "hihg; did you mean high")),
            ({"low": 1, "high": 1}, (ConfigError, "key: ", "found 1 and 1; set it")),
            ({"low": 2, "high": 1}, (ConfigError, "swap")),
            ({"low": 0, "high": 1, "scale": "log"}, (ConfigError, "key.low")),
            ({"low": 1, "high": 2, "scale": "logg"}, (ConfigError, "key.scale", "did you mean log")),
            ({"low": 0.5, "high": 2, "integer": True}, (ConfigError, "key: ")),
            ({"low": 1, "high": 2, "default": 3}, (ConfigError, "key.default", "found 3; widen")),
            ({"low": 1, "high": 3, "integer": True, "default": 1.5}, (ConfigError, "key.default", "found 1.5")),
            ({"values": [1, 2], "default": 3}, (ConfigError, "key.default", "1, 2", "found 3")),
            ({"values": [1, 2], "low": 3}, (ConfigError, "key: ", "low")),
            ({"values": 1}, (ConfigError, "key.values", "found 1")),
        ],
    )
    def test_a_range_without_a_choice_is_refused(self, value: object, mistake: tuple[str, ...]):
        with refused(*mistake):
            read_range(value, "key")

    def test_a_number_in_scientific_notation_is_a_number(self):
        written = {"low": "1e-3", "high": "1e-1", "scale": "log", "default": "1e-2"}
        assert read_range(written, "key") == Span(0.001, 0.1, "log", default=0.01)

    def test_edges_are_ends_of_numbers(self):
        assert [at_edge(v, [1, 3, 2]) for v in (1, 2, 3)] == ["lowest", None, "highest"]
        assert [at_edge(v, [1, 3, 3]) for v in (1, 3)] == [None, None]  # each of two numbers is an end
        assert at_edge("a", ["a", "b"]) is at_edge(True, [True, False]) is None


class TestPlan:
    def test_every_method_has_the_same_number_of_tries_with_its_own_ranges(self, folder: Path):
        tuning = loaded(folder, tries=2)
        assert {case: len(points) for case, points in first_points_of(tuning).items()} == {"fedavg": 2, "fedprox": 2}
        runs = runs_of(tuning, "try", first_points_of(tuning), one_parser())
        assert [run.seed for run in runs["fedavg"]] == [100] * 2
        assert [run.point[LR] for run in runs["fedavg"]] == [run.point[LR] for run in runs["fedprox"]]
        config = yaml.safe_load(runs["fedprox"][0].config)
        point = first_points_of(tuning)["fedprox"][0]
        assert config["federation"]["aggregators"][0]["init_args"]["mu"] == point["federation.aggregators.mu"]
        assert config["model"]["init_args"]["lr"] == point[LR]
        assert {"fedlit.tune": "try", "fedlit.method": "fedprox", "fedlit.tuned": "2 tries"}.items() <= (
            config["tags"].items()
        )
        second = {"fedavg": first_points_of(tuning)["fedavg"][1:]}
        alone = replace(tuning, cases={"fedavg": tuning.cases["fedavg"]})
        (final,) = runs_of(alone, "final", second, one_parser())["fedavg"][1:]
        assert final.name == f"fedavg,lr={first_points_of(tuning)['fedavg'][1][LR]},seed=1"
        assert yaml.safe_load(final.config)["tags"]["fedlit.tune"] == "final"

    def test_a_grid_has_all_combinations_and_null_removes_a_shared_range(self, folder: Path):
        ranges = {"model.lr": None, "federation.rounds": [1, 2]}
        tuning = loaded(folder, **GRID | {"cases": {"fedavg": {}, "rounds": {"ranges": ranges}}})
        fedavg, rounds = first_points_of(tuning).values()
        assert sorted(map(str, fedavg)) == sorted(map(str, ({LR: 0.1}, {LR: 0.2})))
        assert sorted(map(str, rounds)) == sorted(map(str, ({"federation.rounds": 1}, {"federation.rounds": 2})))

    @pytest.mark.parametrize(
        ("changes", "mistake"),
        [
            ({"rule": {"metric": "test/federation/auroc_macro"}}, (ConfigError, "rule.metric", "test/")),
            ({"rule": {"metric": "test_curve/federation/auroc_macro"}}, (ConfigError, "rule.metric")),
            ({"rule": {"metric": "drift/update_norm"}}, (ConfigError, "rule.mode", "drift/update_norm")),
            ({"rule": {"metrc": "x"}}, (ConfigError, "metrc", "did you mean", "metric")),
            ({"rule": {"seeds": [1, 2]}}, (ConfigError, "seeds: ", "found 1 in both")),
            ({"rule": {"seeds": []}}, (ConfigError, "rule.seeds")),
            ({"seeds": [0, 0]}, (ConfigError, " seeds: ")),
            ({"tries": None}, (ConfigError, "tries: ", "found None")),
            ({"ranges": {LR: [0.1, 0.2]}, "tries": 3}, (ConfigError, "tries (fedavg)", "most 2", "found 3")),
            ({"ranges": {LR: [0.1]}}, (ConfigError, "ranges.model.lr (", "line ", "found only 0.1")),
            ({"ranges": {}}, (ConfigError, "cases.fedavg")),
            ({"ranges": {"seed": [1, 2]}}, (ConfigError, "ranges.seed")),
            ({"sampler": "tpee"}, (ConfigError, "tpee")),
            ({"sampler": "grid"}, (ConfigError, "sampler (fedavg)")),
            (GRID | {"tries": 3}, (ConfigError, "tries (fedavg)", "expected 2", "found 3")),
            (
                GRID | {"cases": {"a": {}, "b": {"ranges": {"federation.rounds": [1, 2]}}}},
                (ConfigError, "found a: 2, b: 4"),
            ),
            ({"cases": {}}, (ConfigError, "cases: ")),
        ],
    )
    def test_a_mistake_names_the_file_and_the_key(self, folder: Path, changes: dict, mistake: tuple[str, ...]):
        file = write(folder, TUNE | changes).rename(folder / "tune.yaml")
        with refused(*mistake, "tune.yaml"):
            load_tuning(file)

    def test_an_unknown_key_of_a_range_has_its_line_and_similar_names(self, folder: Path, fedlit_cli):
        write(folder, TUNE | {"ranges": {"model.lrr": [0.1, 0.2]}, "tries": 2})
        ended = fedlit_cli("tune --config sweep.yaml --dry_run true")
        ended.refused("sweep.yaml, line", "lrr", "did you mean", code=2)

    def test_a_dry_run_lists_the_tries(self, folder: Path, fedlit_cli):
        write(folder, TUNE | {"tries": 1})
        out = fedlit_cli("tune --config sweep.yaml --dry_run true").succeeded()
        assert out.count("seed=100  new") == 2
        assert not (folder / "runs").exists()


class TestChoice:
    @pytest.fixture(scope="class")
    def tried(self, tmp_path_factory: pytest.TempPathFactory):
        """A tuning whose tries of FedAvg have these scores; the second failed with one of two seeds."""
        place = tmp_path_factory.mktemp("tried")
        rule = {"metric": "val/auroc_macro", "seeds": [100, 101]}
        tuning = loaded(place, rule=rule, cases={"fedavg": {}}, run_dir=str(place / "runs"))
        runs = runs_of(tuning, "try", first_points_of(tuning), one_parser())["fedavg"]
        for run, score in zip(runs, (0.6, 0.7, 0.95, None, 0.7, 0.9, 0.75, 0.85), strict=True):
            run.directory.mkdir(parents=True)
            rows = f"1,round/steps,5.0\n1,time/round_s,2.0\n1,time/evaluate_s,1.0\n2,val/auroc_macro,{score}\n"
            (run.directory / "metrics.csv").write_text("step,key,value\n" + (rows if score else ""))
            if score:
                Result(2, 2, 1.0).write(run.directory)
        return tuning, choose("fedavg", tuning, first_points_of(tuning)["fedavg"], runs)

    def test_the_best_mean_wins_and_a_failed_try_cannot(self, tried: tuple):
        _, tuned = tried
        assert [(each.place, each.seeds) for each in tuned.chosen] == [(2, (0, 1))]
        assert [score for (score,) in tuned.scores] == pytest.approx([0.65, math.nan, 0.8, 0.8], nan_ok=True)
        smallest = loaded(Path(), rule={"metric": "val/auroc_macro", "seeds": [100, 101], "mode": "min"},
                          cases={"fedavg": {}})  # fmt: skip
        assert choose("fedavg", smallest, tuned.points, tuned.runs).chosen[0].place == 0

    def test_a_metric_that_no_try_has_is_named_with_similar_ones(self, tried: tuple):
        _, tuned = tried
        other = loaded(Path(), rule={"metric": "val/auroc_macr", "seeds": [100, 101]}, cases={"fedavg": {}})
        with refused(ConfigError, "val/auroc_macro"):
            choose("fedavg", other, tuned.points, tuned.runs)

    def test_the_report_has_every_part(self, tried: tuple, folder: Path):
        tuning, tuned = tried
        cost = cost_of(tuned, tuning.rule.metric)
        assert (cost.runs, cost.failed, cost.steps, cost.seconds) == (8, 1, 35, 21.0)
        finals = pd.DataFrame(
            {"case": "fedavg", "data_seed": [0, 1], "test/federation/auroc_macro": [0.8, 0.9], "status": "finished"}
        )
        text = write_tuning_report(tuning, [tuned], finals, folder / "out")
        for part in (
            "0.001 to 1 (log)",
            f"model.lr {tuned.points[2][LR]}",
            "about these settings, not about the methods",
            "0.8500 | 0.0707 | 2/2",
            "| 8 | 1 | 35 | 21 |",
        ):
            assert part in text
        assert (folder / "out/report.md").read_text() == text
        tries = pd.read_csv(folder / "out/tries.csv")
        assert list(tries["chosen"]) == [False, False, True, False]
        assert list(pd.read_csv(folder / "out/best_by_tries.csv")["tries"]) == [1, 2, 3, 4]

    def test_a_chosen_value_at_an_end_of_the_tries_is_reported(self):
        points = [{LR: 0.1}, {LR: 0.2}, {LR: 0.9}, {LR: 0.3}]
        assert edges(points[2], points) == {LR: "highest"}
        assert edges(points[3], points) == {}


class TestSuggestions:
    RANGES = {
        LR: Span(0.0001, 1, "log"),
        "layers": Span(1, 5, integer=True, default=3),
        "kind": Choice(["a", {"class_path": "b"}]),
    }

    @staticmethod
    def score(point: dict) -> float:
        return -((math.log10(point[LR]) + 1) ** 2) - (point["kind"] == "a")

    def suggest(self, number: int, seed: int) -> list[dict]:
        points = first_points("tpe", self.RANGES, number, seed, "tries")
        assert len(points) == 3
        assert points[0]["layers"] == 3
        while len(points) < number:
            points.append(next_point(self.RANGES, points, list(map(self.score, points)), seed))
        return points

    def test_suggestions_score_higher_than_random_tries(self):
        pairs = [(self.suggest(20, seed), drawn(self.RANGES, 20, seed)) for seed in range(5)]
        suggested, random = (sum(self.score(p) for pair in pairs for p in pair[which][10:]) / 50 for which in (0, 1))
        assert suggested > random / 2  # scores are negative
        assert all(1 <= p["layers"] <= 5 and float(f"{p[LR]:.3g}") == p[LR] for points, _ in pairs for p in points)

    def test_a_failed_try_teaches_nothing_and_no_try_is_repeated(self):
        points = drawn(self.RANGES, 5)
        assert next_point(self.RANGES, points, [*map(self.score, points[:4]), math.nan], 0) not in points
        few = {"kind": Choice([1, {"class_path": "b"}, None]), "steps": Span(1, 2, integer=True)}
        points = drawn(few, 6)
        assert next_point(few, points[:5], [0.1] * 5, 0) == points[5]

    def test_a_tuning_runs_them_in_turn_and_repeats_them(self, folder: Path, monkeypatch):
        calls, tables = [], []

        def run_all(runs, file, metric, jobs, console, tried=(), above=None):
            calls.append([run.name for run in runs])
            for run in runs:
                run.directory.mkdir(parents=True, exist_ok=True)
                score = -abs(math.log10(run.point[LR]) + 1)
                (run.directory / "metrics.csv").write_text(f"step,key,value\n2,val/auroc_macro,{score}\n")
                Result(2, 2, 1.0).write(run.directory)
            tables.append(above)
            return pd.DataFrame({"name": [run.name for run in runs]})

        monkeypatch.setattr("fedlit.experiment.tuning.run_all", run_all)
        tuning = loaded(folder, sampler="tpe", tries=4, seeds=[0])
        tuned, _ = run_tuning(tuning, 1, Console(quiet=True))
        assert [len(names) for names in calls] == [6, 8, 2]
        assert [len(each.points) for each in tuned] == [len(each.scores) for each in tuned] == [4, 4]
        assert tuned[0].points[:3] == first_points_of(tuning)["fedavg"][:3]
        assert tuned[0].points[3:] != first_points_of(tuning)["fedavg"][3:]
        again = replace(tuning, cases={"fedavg": tuning.cases["fedavg"]})
        assert run_tuning(again, 1, Console(quiet=True))[0] == tuned[:1]
        assert calls[3:] == [[name for name in names if name.startswith("fedavg")] for names in calls[:3]]
        tried = tables[2]  # what stands above the final runs: each try with its score
        assert tried["chosen"].tolist().count(True) == 2
        assert tried.loc[tried["chosen"], "score"].tolist() == [
            max(score for (score,) in each.scores) for each in tuned
        ]
        assert best_so_far([math.nan, 0.5, 0.4, 0.7], 1)[1:] == [0.5, 0.5, 0.7]

    def test_a_failed_try_is_not_run_again_by_the_same_command(self, folder: Path, monkeypatch):
        calls = []

        def run_jobs(jobs, at_once, started, ended, tick, *_):
            for job in jobs:
                calls.append(job.name)
                started(job)
                if fine := len(calls) != 1:
                    finish(job.log.parent, 0.5)
                ended(job, 0 if fine else 1, False)
            return 0

        monkeypatch.setattr("fedlit.experiment.sweep.run_jobs", run_jobs)
        tuned, _ = run_tuning(loaded(folder, sampler="tpe", cases={"fedavg": {}}), 1, Console(quiet=True))
        assert len(calls) == len(set(calls)) == 6
        assert [math.isnan(score) for (score,) in tuned[0].scores] == [True, False, False, False]
        table = pd.read_csv(tuned[0].runs[0].directory.parent / "tune.csv")
        assert list(table["status"]).count("failed") == 1
        assert list(table["stage"]) == ["try"] * 4 + ["final"] * 2
        assert table["name"].is_unique

    @pytest.mark.parametrize("seed", [-1, 20240101])
    def test_any_seed_and_values_that_equal_each_other_are_suggested(self, seed: int):
        ranges = {"kind": Choice([0, False, 1, True])}
        points = drawn(ranges, 4, seed)
        assert repr(next_point(ranges, points[:3], [0.1] * 3, seed)) == repr(points[3])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_by_tries_is_the_mean_over_all_draws(sign: int):
    scores, best = [0.3, 0.9, 0.5, 0.8, 0.5], max if sign == 1 else min
    for number, mean in enumerate(best_by_tries(scores, sign), start=1):
        draws = [best(draw) for draw in combinations(scores, number)]
        assert mean == pytest.approx(sum(draws) / len(draws))
    assert best_by_tries([0.5, math.nan, 0.7], sign) == pytest.approx(
        [math.nan, (0.5 + 0.7 + best(0.5, 0.7)) / 3, best(0.5, 0.7)], nan_ok=True
    )


@pytest.mark.slow
def test_a_killed_and_continued_tuning_equals_an_uninterrupted_one(tmp_path: Path):
    base = BASE | {"model": {"class_path": "awkward.Slow", "init_args": {"seconds": 0.02}}}
    base["federation"] = BASE["federation"] | {"rounds": 4, "checkpoint_every": 1}
    ranges = {"federation.gradient_clip": {"low": 0.01, "high": 1, "scale": "log"}}
    cases = {"fedprox": TUNE["cases"]["fedprox"]}
    file = write(tmp_path, TUNE | {"cases": cases, "ranges": ranges, "tries": 2, "seeds": [0]}, base)
    line = f"tune --config {file} --output {tmp_path}"
    Place(tmp_path / "a").start(f"{line}/whole --run_dir {tmp_path}/whole-runs --jobs 2").succeeded(240)
    for stage, signum in (("seed=100", signal.SIGKILL), ("seed=0", signal.SIGINT)):
        part = Place(tmp_path / stage).start(f"{line}/parts --run_dir {tmp_path}/parts-runs")
        assert wait_until(
            lambda stage=stage: any(
                len(Kept(run).rounds) and not (run / "result.json").exists()
                for run in (tmp_path / "parts-runs/tuned").glob(f"*{stage}")
            ),
            part,
            seconds=240,
        )
        os.kill(part.process.pid, signum)
        assert part.wait(240) != 0
    Place(tmp_path / "rest").start(f"{line}/parts --run_dir {tmp_path}/parts-runs").succeeded(240)
    names = sorted(path.parent.name for path in (tmp_path / "whole-runs/tuned").glob("*/result.json"))
    assert len(names) == 3
    for name in names:
        assert_same_run(Kept(tmp_path / "whole-runs/tuned" / name), Kept(tmp_path / "parts-runs/tuned" / name))
    for table in ("tries", "best_by_tries"):
        assert (tmp_path / f"whole/{table}.csv").read_text() == (tmp_path / f"parts/{table}.csv").read_text()
    finals = [json.loads(next(tmp_path.glob(f"{where}-runs/tuned/fedprox*seed=0/result.json")).read_text())
              for where in ("whole", "parts")]  # fmt: skip
    assert finals[0]["metrics"] == finals[1]["metrics"]
