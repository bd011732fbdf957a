"""Sweeps: every run equals that of ``fedlit fit``, none is repeated, and mistakes are found before the first."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from rich.console import Console
from runs import Command, Kept, Place, assert_same_run

from fedlit.core.errors import ConfigError
from fedlit.core.system.processes import cores
from fedlit.experiment.sweep import _own_images, load_sweep, locked, next_steps, plan, run_sweep
from fedlit.tracking.base import Tracker
from fedlit.tracking.mlflow import ALL_RUNS
from fedlit.tracking.run import Result

pytestmark = pytest.mark.usefixtures("folder")

BASE = {
    "data": {"class_path": "toys.ToyData"},
    "model": {"class_path": "toys.ToyNet"},
    "federation": {"rounds": 2, "workers": 1, "participation": 0.7},
    "logger": False,
}
GRID = {
    "experiment": "trial",
    "config": ["base.yaml"],
    "cases": {
        "fedavg": {"federation.aggregators": ["FedAvg"]},
        "scaffold": {"federation": {"aggregators": [{"class_path": "Scaffold", "init_args": {"eta_g": 0.5}}]}},
    },
    "grid": {"model.lr": [0.1]},
    "seeds": [0, 1],
}
NAMES = [f"{case},lr=0.1,seed={seed}" for case in ("fedavg", "scaffold") for seed in (0, 1)]
SLOW = {
    "experiment": "slow",
    "config": ["base.yaml"],
    "set": {"model.class_path": "awkward.Slow", "model.seconds": 0.05, "federation.rounds": 6,
            "federation.checkpoint_every": 1, "logger": "test_sweep.Recorder"},
    "seeds": [0, 1],
}  # fmt: skip


class Recorder(Tracker):
    """A tracker that writes tags and process properties into the run's directory."""

    def start(self, run, metrics) -> None:
        daemon = multiprocessing.current_process().daemon
        recorded = {"tags": dict(run.tags), "pid": os.getpid(), "daemon": daemon, "argv": sys.argv[1:],
                    "cores": cores()}  # fmt: skip
        (run.directory / "recorded.json").write_text(json.dumps(recorded))


def write(folder: Path, sweep: dict, base: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(base or BASE))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return folder / "sweep.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """The experiment folder of the grid after one call, and the returned table."""
    place = tmp_path_factory.mktemp("finished")
    sweep = load_sweep(write(place, {**GRID, "run_dir": str(place / "runs")}))
    table = run_sweep(sweep, console=Console(quiet=True))
    return sweep.directory, table


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment folder of the slow sweep."""
    place = tmp_path_factory.mktemp("slow")
    sweep = load_sweep(write(place, {**SLOW, "run_dir": str(place / "runs")}))
    assert (run_sweep(sweep, jobs=2, console=Console(quiet=True))["status"] == "finished").all()
    return sweep.directory


def wait_until(condition: Callable[[], object], command: Command | None = None, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert command is None or command.process.is_alive(), command.output
        assert time.monotonic() < deadline, command.output if command else "nothing happened"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except FileNotFoundError:
        return False


class TestRuns:
    def test_every_combination_is_there_and_complete(self, finished):
        directory, table = finished
        assert sorted(p.name for p in directory.iterdir() if p.is_dir()) == NAMES
        assert list(table["name"]) == NAMES
        assert list(table["model.lr"]) == [0.1] * 4
        assert list(table["seed"]) == [0, 1, 0, 1]
        assert list(table["status"]) == ["finished"] * 4
        for name, score in zip(NAMES, table["val/auroc_macro"], strict=True):
            result = json.loads((directory / name / "result.json").read_text())
            assert (result["status"], result["rounds"]) == ("FINISHED", 2)
            assert (result["best_round"], "val/auroc_macro", repr(score)) in Kept(directory / name).metrics()
            assert "mean over defined classes" in (directory / name / "console.log").read_text()
        pd.testing.assert_frame_equal(pd.read_csv(directory / "sweep.csv"), table, check_dtype=False)

    def test_a_second_call_does_nothing_but_show(self, finished, fedlit_cli):
        directory, table = finished
        before = {path: path.stat().st_mtime_ns for path in directory.glob("*/*")}
        code, out, err = fedlit_cli(f"sweep --config {directory.parent.parent / 'sweep.yaml'}")
        assert code == 0, err
        assert "4 runs, 4 finished before" in out
        assert {path: path.stat().st_mtime_ns for path in directory.glob("*/*")} == before
        scores = table["val/auroc_macro"]
        assert re.search(rf"scaffold +│ 0.1 +│ {scores[2:].mean():.4f} │ +{scores[2:].std():.4f} │ +2/2 │", out)

    def test_what_to_do_next_is_told(self, folder: Path):
        table = pd.DataFrame({"status": ["failed", "finished"], "directory": ["runs/e/a", "runs/e/b"]})
        file = Path("runs/e/sweep.csv")
        assert next_steps(table[:1], file) == "table of the runs: runs/e/sweep.csv"
        told = "table of the runs: runs/e/sweep.csv\nto compare: fedlit compare runs/e"
        assert next_steps(table, file) == told
        Path("runs/e/b").mkdir(parents=True)
        told += "\nmlflow ui --backend-store-uri sqlite:///mlflow.db"
        noted = {"run_id": "1", "experiment_id": "4", "tracking_uri": "sqlite:///mlflow.db"}
        Path("runs/e/b/mlflow_run.json").write_text(json.dumps(noted))
        assert next_steps(table, file) == f"{told}\nhttp://127.0.0.1:5000/#/experiments/4/{ALL_RUNS}"

    def test_a_run_is_that_of_fit(self, finished, fedlit_cli, folder: Path):
        directory, _ = finished
        line = f"fit -c {directory.parent.parent / 'base.yaml'} --seed 1 --model.lr 0.1 --name alone"
        assert fedlit_cli(f"{line} --federation.aggregators+=Scaffold --federation.aggregators.eta_g 0.5")[0] == 0
        assert_same_run(Kept(folder / "runs/default/alone"), Kept(directory / NAMES[3]))

    @pytest.mark.slow
    def test_runs_side_by_side_give_the_same_numbers(self, finished, fedlit_cli, folder: Path):
        assert fedlit_cli(f"sweep --config {write(folder, GRID)} --jobs 2 --run_dir here")[0] == 0
        for name in NAMES:
            assert_same_run(Kept(folder / "here/trial" / name), Kept(finished[0] / name))

    def test_a_run_may_have_workers_and_other_ranks(self, uninterrupted: Path):
        recorded = json.loads((uninterrupted / "seed=1" / "recorded.json").read_text())
        assert not recorded["daemon"]
        assert recorded["argv"][:2] == ["fit", "--config"]  # what starts the other ranks repeats these words

    def test_runs_side_by_side_share_the_cores(self, uninterrupted: Path):
        for name in ("seed=0", "seed=1"):
            recorded = json.loads((uninterrupted / name / "recorded.json").read_text())
            assert recorded["cores"] == max(1, cores() // 2)

    def test_a_metric_that_no_run_has_is_said(self, finished, fedlit_cli, folder: Path):
        sweep = write(folder, {**GRID, "metric": "val/auroc_makro"})
        code, out, _ = fedlit_cli(f"sweep --config {sweep} --run_dir {finished[0].parent}")
        assert code == 0
        assert "no run has 'val/auroc_makro'" in out

    @pytest.mark.parametrize("metric", ["test/federation/auroc_macro", "test_curve/federation/auroc_macro"])
    def test_the_test_set_does_not_choose_among_the_points_of_a_grid(self, metric: str, folder: Path):
        with pytest.raises(ConfigError, match="expected a metric of the validation data"):
            load_sweep(write(folder, {**GRID, "metric": metric}))
        assert load_sweep(write(folder, GRID)).metric == "val/auroc_macro"
        methods = {key: value for key, value in GRID.items() if key != "grid"}
        assert load_sweep(write(folder, {**methods, "metric": metric})).metric == metric

    def test_a_metric_of_the_rounds_is_that_of_the_best_model(self, finished):
        directory, _ = finished
        sweep = replace(load_sweep(directory.parent.parent / "sweep.yaml"), metric="val/auroc_macro")
        (score, *_) = run_sweep(sweep, console=Console(quiet=True))["val/auroc_macro"]
        best = json.loads((directory / NAMES[0] / "result.json").read_text())["best_round"]
        assert (best, "val/auroc_macro", repr(score)) in Kept(directory / NAMES[0]).metrics()

    def test_tags_reach_the_tracker(self, uninterrupted: Path):
        recorded = json.loads((uninterrupted / "seed=1" / "recorded.json").read_text())["tags"]
        assert recorded["fedlit.sweep"] == "slow"
        assert recorded["fedlit.group"].startswith("FedAvg-")
        assert recorded["fedlit.algorithm"] == "FedAvg"

    def test_a_dry_run_lists_and_starts_nothing(self, fedlit_cli, folder: Path):
        code, out, _ = fedlit_cli(f"sweep --config {write(folder, GRID)} --dry_run true")
        assert (code, out.splitlines()) == (0, [f"runs/trial/{name}  new" for name in NAMES])
        assert not (folder / "runs").exists()


class TestPlan:
    def test_names_are_as_short_as_tells_them_apart(self, folder: Path):
        values = {"federation.aggregators": [["FedAvg"], [{"class_path": "FedProx", "init_args": {"mu": 0.5}}]]}
        sweep = {"experiment": "names", "config": ["base.yaml"], "grid": {"model.lr": [0.1, 1e-5], **values}}
        assert [run.name for run in plan(load_sweep(write(folder, sweep)))] == [
            "lr=0.1,aggregators=FedAvg,seed=0",
            "lr=0.1,aggregators=FedProx-mu-0.5,seed=0",
            "lr=1e-05,aggregators=FedAvg,seed=0",
            "lr=1e-05,aggregators=FedProx-mu-0.5,seed=0",
        ]
        sweep |= {"set": {"model.class_path": "awkward.Stumbling"}, "grid": {"data.size": [12], "model.size": [2]}}
        assert [run.name for run in plan(load_sweep(write(folder, sweep)))] == ["data.size=12,model.size=2,seed=0"]

    def test_sections_win_over_each_other_in_order(self, folder: Path):
        sweep = {
            "experiment": "order",
            "config": ["base.yaml"],
            "set": {"federation.rounds": 3, "data.size": 20, "model.lr": 0.5},
            "cases": {"a": {"data": {"init_args": {"size": 30}}, "model.lr": 0.4}},
            "grid": {"model.lr": [0.3]},
        }
        (run,) = plan(load_sweep(write(folder, sweep)))
        config = yaml.safe_load(run.config)
        assert config["federation"]["rounds"] == run.rounds == 3
        assert config["data"]["init_args"]["size"] == 30
        assert config["model"]["init_args"]["lr"] == 0.3
        assert config["tags"] == {
            "fedlit.sweep": "order", "fedlit.case": "a", "fedlit.method": "a", "model.lr": "0.3"
        }  # fmt: skip

    def test_a_class_of_another_library_is_one_of_the_values(self, folder: Path):
        optimizers = [{"class_path": f"torch.optim.{name}", "init_args": {"lr": 0.1}} for name in ("SGD", "Adam")]
        base = BASE | {"model": {"class_path": "LogisticRegression", "init_args": {"features": 4}}}
        for section in (
            {"grid": {"model.optimizer": optimizers}},
            {"cases": {"a": {"model.optimizer": optimizers[1]}}},
        ):
            sweep = {"experiment": "classes", "config": ["base.yaml"], **section}
            runs = plan(load_sweep(write(folder, sweep, base)))
            chosen = [yaml.safe_load(run.config)["model"]["init_args"]["optimizer"] for run in runs]
            assert [each["class_path"] for each in chosen] == ["torch.optim.SGD", "torch.optim.Adam"][-len(runs) :]
            assert all(each["init_args"]["lr"] == 0.1 for each in chosen)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (
                {"grid": {"model.lr": [0.1, "high"]}},
                r"run fedavg,lr=high: model.* \(\S+sweep.yaml, line \d+\).*Expected a float. Got value: high",
            ),
            ({"grid": {"federation.rounds": [2, 0]}}, r"run fedavg,rounds=0: federation.rounds .*expected at least 1"),
            ({"grid": {"federation.round": [2]}}, r"--federation.round=2; did you mean federation.rounds"),
            ({"grid": {"model.lr": []}}, r"grid.model.lr: expected at least one value"),
            ({"grid": {"seed": [1]}}, r"seed: a sweep sets it for each run; use seeds"),
            ({"seeds": []}, "seeds: expected at least one value"),
            ({"seeds": [1, 1]}, "run fedavg,lr=0.1,seed=1: expected different values and seeds"),
            ({"seeds": "many"}, r"seeds \(\S+sweep.yaml, line \d+\): Expected a list. Got value: many"),
            ({"cases": {"a/b": {}}}, "cases: expected a name of letters.*found 'a/b'"),
            (
                {"cases": {"one": {"model.lr": 0.2}, "two": {"model": {"init_args": {"lr": 0.2}}}}, "grid": {}},
                "runs one,seed=0 and two,seed=0 have the same configuration",
            ),
            (
                {"cases": {"good": {}, "bad": {"federation.aggregators": ["FedAvg", "Scafold"]}}},
                r"run bad,lr=0.1: federation.aggregators \(\S+sweep.yaml, line 9\): Expected .*: Scafold; did you",
            ),
            ({"config": ["base.yaml", "absent.yaml"]}, "there is no file .*absent.yaml; write paths relative to"),
            ({"sedes": [1]}, "'sedes' is not accepted; did you mean seeds"),
        ],
        ids=str,
    )
    def test_a_mistake_is_told_before_anything_starts(self, change: dict, said: str, fedlit_cli, folder: Path):
        code, _, err = fedlit_cli(f"sweep --config {write(folder, GRID | change)}")
        assert code == 2
        assert re.search(said, err.replace("\n", " ")), err
        assert not (folder / "runs").exists()

    def test_no_file_and_no_yaml(self, folder: Path):
        with pytest.raises(ConfigError, match=r"absent.yaml"):
            load_sweep(folder / "absent.yaml")
        (folder / "list.yaml").write_text("[1]")
        with pytest.raises(ConfigError, match=r"list.yaml: expected keys with values; found a list"):
            load_sweep(folder / "list.yaml")


class TestGoingOn:
    @pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
    def test_a_stopped_sweep_goes_on_to_the_same_numbers(self, signum: int, uninterrupted, folder: Path, fedlit_cli):
        line = f"sweep --config {write(folder, SLOW)} --jobs 2"
        runs = [Kept(folder / f"runs/slow/seed={seed}") for seed in (0, 1)]

        def stop() -> None:
            wait_until(lambda: all(max(run.rounds, default=0) >= 2 for run in runs))
            os.kill(os.getpid(), signum)

        stopper = threading.Thread(target=stop)
        stopper.start()
        code, out, _ = fedlit_cli(line)
        stopper.join()
        assert code == 128 + signum
        assert "repeat the command to continue" in out
        assert [line.split("  ")[1] for line in out.splitlines() if line.startswith("seed=")] == ["stopped"] * 2
        assert "left" not in out
        assert list(pd.read_csv("runs/slow/sweep.csv")["status"]) == ["stopped"] * 2
        self.goes_on(line, runs, uninterrupted, fedlit_cli)

    @pytest.mark.slow
    @pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
    def test_ctrl_c_before_a_run_has_begun_stops_it(self, folder: Path, handler):
        """Also if the shell makes the sweep ignore Ctrl-C, as it does with ``fedlit sweep ... &`` in a script."""
        words = ["-m", "fedlit", "sweep", "--config", str(write(folder, SLOW))]
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        with Path("said.txt").open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *words],
                stdout=file,
                stderr=file,
                env=os.environ | paths,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
            )
        try:
            started = "started seed=0: tail -F runs/slow/seed=0/console.log\n"
            wait_until(lambda: started in Path("said.txt").read_text())
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: all of the group get it
            code = process.wait(60)
        finally:
            process.kill()
        said = Path("said.txt").read_text()
        assert code == 128 + signal.SIGINT, said
        assert re.search(r"^seed=0  stopped  0:00:\d\d$", said, re.MULTILINE), said
        assert not re.search("failed|Error|Traceback|Interrupt|seed=1", said), said
        assert list(pd.read_csv("runs/slow/sweep.csv")["status"]) == ["stopped", "waiting"]

    @pytest.mark.slow
    def test_a_killed_sweep_takes_its_runs_along_and_goes_on(self, uninterrupted, folder: Path, fedlit_cli):
        line = f"sweep --config {write(folder, SLOW)} --run_dir {folder / 'runs'} --jobs 2"
        runs = [Kept(folder / f"runs/slow/seed={seed}") for seed in (0, 1)]
        command = Place(folder).start(line)
        wait_until(lambda: all(max(run.rounds, default=0) >= 2 for run in runs), command)
        command.process.kill()
        assert command.wait() == -signal.SIGKILL
        pids = [json.loads((run.path / "recorded.json").read_text())["pid"] for run in runs]
        wait_until(lambda: not any(map(alive, pids)))
        self.goes_on(line, runs, uninterrupted, fedlit_cli)

    def goes_on(self, line: str, runs: list[Kept], uninterrupted: Path, fedlit_cli) -> None:
        assert not any((run.path / "result.json").exists() for run in runs)
        code, _, err = fedlit_cli(line)
        assert code == 0, err
        for run in runs:
            assert "resuming" in (run.path / "console.log").read_text()
            assert_same_run(run, Kept(uninterrupted / run.path.name))

    @pytest.mark.slow
    def test_a_failing_run_does_not_stop_the_others(self, fedlit_cli, folder: Path):
        bad = {"model.class_path": "awkward.Stumbling", "model.what": "raise", "model.size": 4, "model.until": "mended"}
        sweep = {"experiment": "e", "config": ["base.yaml"], "cases": {"bad": bad, "good": {}}}
        code, out, _ = fedlit_cli(f"sweep --config {write(folder, sweep)}")
        assert code == 1
        assert "bad,seed=0  failed (exit code 1)" in out
        assert "this client has had enough" in out
        assert list(pd.read_csv("runs/e/sweep.csv")["status"]) == ["failed", "finished"]

        Path("mended").touch()
        code, out, _ = fedlit_cli("sweep --config sweep.yaml")
        assert code == 0
        assert "2 runs, 1 finished before" in out
        assert sorted(p.name for p in Path("runs/e").iterdir() if p.is_dir()) == ["bad,seed=0", "good,seed=0"]

    @pytest.mark.slow
    def test_a_changed_configuration_is_refused_with_the_difference(self, fedlit_cli, folder: Path):
        sweep = {"experiment": "e", "config": ["base.yaml"], "seeds": [0, 1]}
        assert fedlit_cli(f"sweep --config {write(folder, {**sweep, 'seeds': [1]})}")[0] == 0
        write(folder, sweep, {**BASE, "model": {"class_path": "toys.ToyNet", "init_args": {"lr": 0.7}}})
        code, _, err = fedlit_cli("sweep --config sweep.yaml")
        assert code == 1
        assert "run seed=1: runs/e/seed=1 was started with another configuration" in err
        assert "model.init_args.lr: 0.1 there, 0.7 now" in err
        assert not Path("runs/e/seed=0").exists()

        write(folder, {**sweep, "seeds": [1], "set": {"federation.rounds": 1}})
        code, _, err = fedlit_cli("sweep --config sweep.yaml")
        assert (code, "federation.rounds: 2 there, 1 now" in err) == (1, True)
        write(folder, {**sweep, "seeds": [1], "set": {"federation.rounds": 3}})
        assert fedlit_cli("sweep --config sweep.yaml")[0] == 0
        assert json.loads(Path("runs/e/seed=1/result.json").read_text())["rounds"] == 3

    def test_what_died_before_its_first_checkpoint_starts_anew_under_its_name(self, fedlit_cli, folder: Path):
        left = folder / "runs/e/seed=0"
        left.mkdir(parents=True)
        (left / "config.yaml").write_text("federation: {rou")
        (left / "metrics.csv").write_text("step,key,value\n7,train/loss,1.0\n")
        sweep = write(folder, {"experiment": "e", "config": ["base.yaml"], "seeds": [0]})
        assert fedlit_cli(f"sweep --config {sweep}")[0] == 0
        assert [p.name for p in left.parent.iterdir() if p.is_dir()] == ["seed=0"]
        assert max(step for step, _, _ in Kept(left).metrics()) == 2
        assert not list(left.glob(".*"))

    def test_what_is_no_run_is_left_alone(self, fedlit_cli, folder: Path):
        (folder / "runs/e/seed=0").mkdir(parents=True)
        Path("runs/e/seed=0/thesis.tex").touch()
        code, _, err = fedlit_cli(f"sweep --config {write(folder, {'experiment': 'e', 'config': ['base.yaml']})}")
        assert code == 1
        assert "runs/e/seed=0 exists but is not a run directory; move it away" in err
        assert Path("runs/e/seed=0/thesis.tex").exists()

    def test_two_sweeps_do_not_share_a_folder(self, fedlit_cli, folder: Path):
        with locked(folder / "runs/trial/sweep.csv"):
            code, _, err = fedlit_cli(f"sweep --config {write(folder, GRID)}")
        assert (code, "runs/trial/sweep.csv: another process is running these runs" in err) == (2, True)
        assert [p.name for p in Path("runs/trial").iterdir()] == [".sweep.lock"]


def test_runs_without_the_metric_because_heads_are_personal_say_what_they_have_instead(folder: Path):
    metrics = {"test/federation/auroc_own_macro": 0.658, "test/federation/auroc_images": 213.0}
    Result(1, 1, 1.0, metrics).write(folder)
    row = {"name": "pfl", "status": "finished", "directory": str(folder), "test/federation/auroc_macro": float("nan")}
    (line,) = _own_images(pd.DataFrame([row]), "test/federation/auroc_macro")
    assert "auroc_own_macro is 0.6580, from 213 images per class" in line
    assert not _own_images(pd.DataFrame([row | {"status": "failed"}]), "test/federation/auroc_macro")
    assert not _own_images(pd.DataFrame([row]).assign(**{"val/loss": float("nan")}), "val/loss")
