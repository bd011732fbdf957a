"""Sweeps: every run equals that of ``fedlit fit``, and none is repeated."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from refusals import refused
from rich.console import Console
from runs import Kept, assert_same_run
from sweeps import GRID, write

from fedlit.core.errors import ConfigError
from fedlit.experiment.sweep import _own_images, load_sweep, run_sweep
from fedlit.tracking.run import Result

pytestmark = pytest.mark.usefixtures("folder")

SWEEP = GRID | {"cases": {"scaffold": GRID["cases"]["scaffold"]}}
NAMES = [f"scaffold,lr=0.1,seed={seed}" for seed in (0, 1)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """The experiment folder of the grid after one call, and the returned table."""
    place = tmp_path_factory.mktemp("finished")
    sweep = load_sweep(write(place, {**SWEEP, "run_dir": str(place / "runs")}))
    table = run_sweep(sweep, console=Console(quiet=True))
    return sweep.directory, table


class TestRuns:
    def test_every_combination_is_there_and_complete(self, finished):
        directory, table = finished
        assert sorted(p.name for p in directory.iterdir() if p.is_dir()) == NAMES
        assert list(table["name"]) == NAMES
        assert list(table["model.lr"]) == [0.1] * 2
        assert list(table["seed"]) == [0, 1]
        assert list(table["status"]) == ["finished"] * 2
        for name, score in zip(NAMES, table["val/auroc_macro"], strict=True):
            result = json.loads((directory / name / "result.json").read_text())
            assert (result["status"], result["rounds"]) == ("FINISHED", 2)
            assert (result["best_round"], "val/auroc_macro", repr(score)) in Kept(directory / name).metrics()
            assert "mean over defined classes" in (directory / name / "console.log").read_text()
        pd.testing.assert_frame_equal(pd.read_csv(directory / "sweep.csv"), table, check_dtype=False)

    def test_a_second_call_does_nothing_but_show(self, finished, fedlit_cli):
        directory, table = finished
        before = {path: path.stat().st_mtime_ns for path in directory.glob("*/*")}
        out = fedlit_cli(f"sweep --config {directory.parent.parent / 'sweep.yaml'}").succeeded()
        assert "2 runs, 2 finished before" in out
        assert {path: path.stat().st_mtime_ns for path in directory.glob("*/*")} == before
        scores = table["val/auroc_macro"]
        assert re.search(rf"scaffold +│ 0.1 +│ {scores.mean():.4f} │ +{scores.std():.4f} │ +2/2 │", out)

    def test_a_run_is_that_of_fit(self, finished, fedlit_cli, folder: Path):
        directory, _ = finished
        line = f"fit -c {directory.parent.parent / 'base.yaml'} --seed 1 --model.lr 0.1 --name alone"
        assert fedlit_cli(f"{line} --federation.aggregators+=Scaffold --federation.aggregators.eta_g 0.5")[0] == 0
        assert_same_run(Kept(folder / "runs/default/alone"), Kept(directory / NAMES[1]))

    @pytest.mark.slow
    def test_runs_side_by_side_give_the_same_numbers(self, finished, fedlit_cli, folder: Path):
        assert fedlit_cli(f"sweep --config {write(folder, SWEEP)} --jobs 2 --run_dir here")[0] == 0
        for name in NAMES:
            assert_same_run(Kept(folder / "here/trial" / name), Kept(finished[0] / name))

    def test_a_metric_that_no_run_has_is_said(self, finished, folder: Path, capsys):
        own = {"metric": "val/auroc_makro", "run_dir": str(finished[0].parent), "seeds": [0]}
        run_sweep(load_sweep(write(folder, {**SWEEP, **own})))
        assert "no run has 'val/auroc_makro'" in capsys.readouterr().out

    @pytest.mark.parametrize("metric", ["test/federation/auroc_macro", "test_curve/federation/auroc_macro"])
    def test_the_test_set_does_not_choose_among_the_points_of_a_grid(self, metric: str, folder: Path):
        with refused(ConfigError, "metric"):
            load_sweep(write(folder, {**GRID, "metric": metric}))
        assert load_sweep(write(folder, GRID)).metric == "val/auroc_macro"
        methods = {key: value for key, value in GRID.items() if key != "grid"}
        assert load_sweep(write(folder, {**methods, "metric": metric})).metric == metric


def test_runs_without_the_metric_because_heads_are_personal_say_what_they_have_instead(folder: Path):
    metrics = {"test/federation/auroc_own_macro": 0.658, "test/federation/auroc_images": 213.0}
    Result(1, 1, 1.0, metrics).write(folder)
    row = {"name": "pfl", "status": "finished", "directory": str(folder), "test/federation/auroc_macro": float("nan")}
    (line,) = _own_images(pd.DataFrame([row]), "test/federation/auroc_macro")
    assert "auroc_own_macro is 0.6580, from 213 images per class" in line
    assert not _own_images(pd.DataFrame([row | {"status": "failed"}]), "test/federation/auroc_macro")
    assert not _own_images(pd.DataFrame([row]).assign(**{"val/loss": float("nan")}), "val/loss")
