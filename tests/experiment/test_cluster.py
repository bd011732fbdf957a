"""Runs as jobs of SLURM, with commands that only keep a queue: what is submitted, listed, repeated and refused."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from runs import Kept, assert_same_run
from small_slurm import NAMES, SWEEP, kept_tasks, options_of
from sweeps import finish_at_once, write

from fedlit.core.errors import ConfigError
from fedlit.core.system import slurm as commands
from fedlit.experiment.cluster.submission import FOLLOWING, Cluster
from fedlit.tracking.run import Result

pytestmark = pytest.mark.usefixtures("folder", "environment")

ONE = {**SWEEP, "cases": {"fedavg": SWEEP["cases"]["fedavg"]}}
JOBS = "fedlit.cli.commands.job.run_jobs"

TABLES = """
from fedlit.reports.reproductions.report import Report

def make(runs):
    return Report(f"{len(runs)} runs in the report", {})
"""


def play(folder: Path, name: str, fedlit_cli, monkeypatch: pytest.MonkeyPatch) -> str:
    """Do what a node does with a run's task."""
    array, _, task = kept_tasks(folder)[name].partition("_")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", array)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
    printed = fedlit_cli(f"job {folder}/jobs/{name}.yaml --submitted_by 0.1.0")
    (folder / "jobs" / f"{array}_{task}.log").write_text(printed.out)
    return printed.succeeded()


class TestSubmission:
    def test_a_sweep_is_one_array_and_a_job_that_repeats_the_command(self, submitted, slurm, fedlit_cli):
        array, following = slurm.script(1), slurm.script(2)
        asked = options_of(array)
        assert asked["array"] == "0-1%8"
        assert (asked["partition"], asked["time"], asked["cpus-per-task"], asked["qos"]) == (
            "gpu", "2:00:00", "4", "long",
        )  # fmt: skip
        assert (asked["requeue"], asked["open-mode"], asked["signal"]) == ("", "append", "B:TERM@120")
        files = "\n".join(f"  {Path.cwd()}/runs/trial/jobs/{name}.yaml" for name in NAMES)
        assert f"cd {Path.cwd()} || exit 1\nmodule load cuda\nruns=(\n{files}\n)\n" in array
        assert options_of(following)["dependency"] == "afterany:1"
        assert following.endswith(" -m fedlit sweep --config sweep.yaml --on cluster.yaml\n")
        assert f"export {FOLLOWING}=1" in following
        assert kept_tasks(submitted) == dict(zip(NAMES, ("1_0", "1_1"), strict=True))
        for name in NAMES:
            config = yaml.safe_load((submitted / "jobs" / f"{name}.yaml").read_text())
            assert (config["experiment"], config["name"]) == ("trial", name)

        slurm.lists({"1_0": "RUNNING|None", "1_1": "PENDING|Priority", "2": "PENDING|Dependency"})
        out = fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").succeeded()
        assert "2 runs of runs/trial wait or run on SLURM; nothing was submitted" in out
        assert slurm.submitted == 2

    def test_a_run_of_a_job_equals_that_of_fit_and_what_failed_is_not_started_by_the_job_that_follows(
        self, submitted, slurm, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        with monkeypatch.context() as untrained:
            untrained.setattr(JOBS, finish_at_once)
            play(submitted, NAMES[0], fedlit_cli, monkeypatch)
        with monkeypatch.context() as follows:
            follows.setenv(FOLLOWING, "1")
            fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").refused()
        assert list(pd.read_csv(submitted / "sweep.csv")["status"]) == ["finished", "failed"]
        assert slurm.submitted == 2
        assert "1 runs are job 3" in fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").succeeded()
        assert kept_tasks(submitted)[NAMES[1]] == "3_0"
        play(submitted, NAMES[1], fedlit_cli, monkeypatch)
        monkeypatch.setenv(FOLLOWING, "1")
        assert "2 runs, 2 finished before" in fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").succeeded()
        assert slurm.submitted == 4
        there = pd.read_csv(submitted / "sweep.csv")
        assert list(there["status"]) == ["finished"] * 2
        line = "fit -c base.yaml --seed 0 --model.lr 0.1 --name alone --federation.aggregators"
        fedlit_cli(f"{line}+=Scaffold --federation.aggregators.eta_g 0.5").succeeded()
        assert_same_run(Kept(submitted / NAMES[1]), alone := Kept(Path("runs/default/alone")))
        score = repr(float(there["val/auroc_macro"][1]))
        assert (Result.read(alone.path).best_round, "val/auroc_macro", score) in alone.metrics()

    def test_a_tuning_submits_its_final_runs_after_its_tries(
        self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        """The tries of its methods have directories of the same name."""
        tuning = {key: value for key, value in SWEEP.items() if key != "grid"} | {
            "ranges": {"model.lr": [0.1, 0.05]}, "tries": 1,
            "rule": {"seeds": [7], "experiment": "{experiment}-grid-{case}"},
        }  # fmt: skip
        monkeypatch.setattr(JOBS, finish_at_once)
        write(Path(), tuning).rename("tune.yaml")
        command, folder = "tune --config tune.yaml --on cluster.yaml", Path("runs/trial")
        fedlit_cli(command).succeeded()
        tries = list(kept_tasks(folder, "tune"))
        fedlit_cli(f"job {' '.join(f'{folder}/jobs/{name}.yaml' for name in tries)}").succeeded()
        tried = sorted(file.parent for file in Path("runs").glob("*/*/result.json"))
        assert [run.parent.name for run in tried] == ["trial-grid-fedavg", "trial-grid-scaffold"]
        assert len({run.name for run in tried}) == 1
        monkeypatch.setenv(FOLLOWING, "1")
        assert "2 runs are job 3 of SLURM" in fedlit_cli(command).succeeded()
        finals = kept_tasks(folder, "tune").keys() - set(tries)
        fedlit_cli(f"job {' '.join(f'{folder}/jobs/{name}.yaml' for name in finals)}").succeeded()
        fedlit_cli(command).succeeded()
        assert list(pd.read_csv(folder / "tune.csv")["status"]) == ["finished"] * 4

    def test_a_reproduction_makes_its_report_after_its_runs(
        self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        write(Path(), ONE)
        Path("tables.py").write_text(TABLES)
        laptop = {"data": "toys", "time": "seconds", "plans": ["sweep.yaml"]}
        Path("mine.yaml").write_text(yaml.safe_dump({"shows": "a method", "scales": {"laptop": laptop}}))
        monkeypatch.setattr(JOBS, finish_at_once)
        command = f"reproduce mine.yaml --on {cluster}"
        assert "1 runs are job 1 of SLURM" in fedlit_cli(command).succeeded()
        play(Path("runs/trial"), NAMES[0], fedlit_cli, monkeypatch)
        assert "finished" in fedlit_cli(f"{command} --status true").succeeded()
        monkeypatch.setenv(FOLLOWING, "1")
        assert "1 runs in the report" in fedlit_cli(command).succeeded()
        assert slurm.submitted == 2

    def test_a_refused_job_leaves_nothing_in_the_queue(self, slurm, cluster, fedlit_cli):
        write(Path(), ONE)
        slurm.refuses("sbatch: error: invalid partition specified: gpu")
        fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").refused(
            "sbatch: invalid partition specified: gpu", code=2
        )
        assert not Path("runs/trial/jobs/sweep.json").exists()


class TestLooking:
    def test_status_says_what_waits_runs_has_finished_has_failed_and_was_cancelled(self, submitted, slurm, fedlit_cli):
        slurm.lists({"1_0": "RUNNING|None", "1_1": "PENDING|Resources"})
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert "its job is running, 0 rounds done" in out
        assert "pending: Resources" in out
        slurm.lists({})
        (submitted / NAMES[0]).mkdir()
        Result(2, 2, 1.0).write(submitted / NAMES[0])
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert re.search(rf"{NAMES[0]} +finished", out)
        assert "no output: can its node see" in out
        (submitted / "jobs" / "1_1.log").write_text("one\nsrun: the node is on fire\n")
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert "failed, or cancelled" in out
        assert "the node is on fire" in out
        slurm.lists({"1_1": "PENDING|Resources", "2": "PENDING|Dependency"})
        assert "cancelled 1 jobs" in fedlit_cli("sweep --config sweep.yaml --cancel true").succeeded()
        assert slurm.calls == ["scancel 2 1_1"]
        slurm.lists({})
        assert re.search(rf"{NAMES[1]} +cancelled", fedlit_cli("sweep --config sweep.yaml --status true").succeeded())

    def test_print_jobs_lists_the_commands_of_the_runs(self, fedlit_cli):
        write(Path(), SWEEP)
        lines = fedlit_cli("sweep --config sweep.yaml --print_jobs true").succeeded().splitlines()
        assert lines == [f"fedlit job {Path.cwd()}/runs/trial/jobs/{name}.yaml" for name in NAMES]


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("partitoin: gpu", "cluster.yaml: there is no key partitoin"),
            ("qos: long", "options of sbatch belong below more"),
            ("cpus: 0", "cpus: expected at least 1, found 0"),
            ("more: {exclude: [a, b]}", "more"),
        ],
    )
    def test_a_yaml_of_the_cluster_is_refused_in_words(self, text: str, words: str):
        Path("cluster.yaml").write_text(text)
        with refused(ConfigError, words):
            Cluster.read(Path("cluster.yaml"))

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("sweep --config sweep.yaml --on nowhere.yaml", "--on: nowhere.yaml: No such file"),
            ("sweep --config sweep.yaml --on cluster.yaml --jobs 2", "--jobs: expected none with --on, found 2"),
            ("sweep --config sweep.yaml --status true", "runs/trial: expected jobs of --on, found none"),
        ],
    )
    def test_options_that_contradict_each_other_are_refused(self, cluster, fedlit_cli, line: str, words: str):
        write(Path(), ONE)
        fedlit_cli(line).refused(words, code=2)

    def test_one_seed_is_no_array(self, cluster, fedlit_cli):
        write(Path(), ONE)
        fedlit_cli("fit --config base.yaml --on cluster.yaml").refused("--on: expected several seeds, found one")
        line = "fit --config base.yaml --seed 0,1 --sites loopback:2 --on cluster.yaml"
        fedlit_cli(line).refused("--sites: expected one seed, found 2")

    def test_without_slurm_the_error_names_the_other_way(self, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch):
        write(Path(), ONE)
        assert shutil.which("sbatch") is None
        fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").refused(
            "there is no command squeue here", "--print_jobs", code=2
        )

    def test_a_controller_that_does_not_answer_is_named(self, slurm, monkeypatch: pytest.MonkeyPatch):
        (slurm.folder / "bin" / "squeue").write_text("#!/bin/sh\nexec sleep 5\n")
        monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.2)
        with refused(ConfigError, "squeue: SLURM did not answer within 0.2 s"):
            commands.listed()


def test_tasks_of_slurm_that_do_not_fit_the_devices_are_refused(monkeypatch: pytest.MonkeyPatch):
    from fedlit.core.fabric import make_fabric

    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with refused(ConfigError, "found 4 tasks", "--cpus-per-task"):
        make_fabric("cpu")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert make_fabric("cpu").world_size == 1
