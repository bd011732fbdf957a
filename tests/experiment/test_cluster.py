"""Runs as jobs of SLURM, with commands that only keep a queue: what is submitted, listed, repeated and refused."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refusals import refused
from small_slurm import SmallSlurm, kept_tasks, options_of
from sweeps import BASE, GRID, write

from fedlit.core.errors import ConfigError
from fedlit.core.system import slurm as commands
from fedlit.core.system.processes import CORES
from fedlit.experiment.cluster.settings import Cluster
from fedlit.experiment.cluster.submission import FOLLOWING
from fedlit.tracking.base import MetricsFile, RunInfo
from fedlit.tracking.journal import LATER, Journal, Notes
from fedlit.tracking.lock import HOLDER, RunLock
from fedlit.tracking.store import connect

pytestmark = pytest.mark.usefixtures("folder")

SWEEP = {**GRID, "seeds": [0], "run_dir": "runs"}
NAMES = ["fedavg,lr=0.1,seed=0", "scaffold,lr=0.1,seed=0"]


TABLES = """
from fedlit.reports.reproductions.report import Report

def make(runs):
    return Report(f"{len(runs)} runs in the report", {})
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what ``fedlit job`` sets for the rest of its process."""
    for name in (LATER, CORES):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallSlurm:
    made = SmallSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    return made


@pytest.fixture
def cluster(folder: Path) -> Path:
    file = Path("cluster.yaml")
    file.write_text("partition: gpu\ntime: 2:00:00\ncpus: 4\nparallel: 8\nsetup: module load cuda\nmore: {qos: long}\n")
    return file


@pytest.fixture
def submitted(slurm: SmallSlurm, cluster: Path, fedlit_cli) -> Path:
    """The experiment folder of a sweep that was submitted and waits."""
    write(Path(), SWEEP)
    out = fedlit_cli(f"sweep --config sweep.yaml --on {cluster}").succeeded()
    assert "2 runs are job 1 of SLURM; job 2 repeats this command after them" in out
    return Path("runs/trial")


def play(folder: Path, name: str, fedlit_cli, monkeypatch: pytest.MonkeyPatch) -> str:
    """Do what a node does with a run's task."""
    array, _, task = kept_tasks(folder)[name].partition("_")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", array)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
    printed = fedlit_cli(f"job {folder}/jobs/{name}.yaml --submitted_by 0.1.0")
    (folder / "jobs" / f"{array}_{task}.log").write_text(printed.out)
    return printed.succeeded()


class TestSubmission:
    def test_a_sweep_is_one_array_and_a_job_that_repeats_the_command(self, submitted, slurm):
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

    def test_jobs_that_wait_or_run_are_not_submitted_again(self, submitted, slurm, fedlit_cli):
        slurm.lists({"1_0": "RUNNING|None", "1_1": "PENDING|Priority", "2": "PENDING|Dependency"})
        out = fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").succeeded()
        assert "2 runs of runs/trial wait or run on SLURM; nothing was submitted" in out
        assert slurm.submitted == 2

    def test_the_jobs_and_the_command_after_them_equal_the_sweep_here(
        self, submitted, slurm, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        for name in NAMES:
            play(submitted, name, fedlit_cli, monkeypatch)
        monkeypatch.setenv(FOLLOWING, "1")
        assert "2 runs, 2 finished before" in fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").succeeded()
        there = pd.read_csv(submitted / "sweep.csv")
        write(Path(), {**SWEEP, "run_dir": "here"})
        fedlit_cli("sweep --config sweep.yaml").succeeded()
        here = pd.read_csv("here/trial/sweep.csv")
        pd.testing.assert_frame_equal(there.drop(columns="directory"), here.drop(columns="directory"))
        assert slurm.submitted == 2

    def test_what_failed_is_not_started_again_by_the_job_that_follows(
        self, submitted, slurm, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        play(submitted, NAMES[0], fedlit_cli, monkeypatch)
        with monkeypatch.context() as follows:
            follows.setenv(FOLLOWING, "1")
            fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").refused()
        assert list(pd.read_csv(submitted / "sweep.csv")["status"]) == ["finished", "failed"]
        assert slurm.submitted == 2
        assert "1 runs are job 3" in fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").succeeded()
        assert kept_tasks(submitted)[NAMES[1]] == "3_0"

    def test_a_tuning_submits_its_final_runs_after_its_tries(
        self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        tuning = {key: value for key, value in SWEEP.items() if key != "grid"} | {
            "cases": {"fedavg": {"federation.aggregators": ["FedAvg"]}}, "ranges": {"model.lr": [0.1, 0.05]},
            "sampler": "grid", "rule": {"seeds": [7]},
        }  # fmt: skip
        write(Path(), tuning).rename("tune.yaml")
        fedlit_cli("tune --config tune.yaml --on cluster.yaml").succeeded()
        folder = Path("runs/trial")
        tries = list(kept_tasks(folder, "tune"))
        for name in tries:
            fedlit_cli(f"job {folder}/jobs/{name}.yaml").succeeded()
        monkeypatch.setenv(FOLLOWING, "1")
        assert "1 runs are job 3 of SLURM" in fedlit_cli("tune --config tune.yaml --on cluster.yaml").succeeded()
        (final,) = kept_tasks(folder, "tune").keys() - set(tries)
        fedlit_cli(f"job {folder}/jobs/{final}.yaml").succeeded()
        fedlit_cli("tune --config tune.yaml --on cluster.yaml").succeeded()
        assert list(pd.read_csv(folder / "tune.csv")["status"]) == ["finished"] * 3

    def test_a_reproduction_makes_its_report_after_its_runs(
        self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        write(Path(), SWEEP)
        Path("tables.py").write_text(TABLES)
        laptop = {"data": "toys", "time": "seconds", "plans": ["sweep.yaml"]}
        Path("mine.yaml").write_text(yaml.safe_dump({"shows": "two methods", "scales": {"laptop": laptop}}))
        command = f"reproduce mine.yaml --on {cluster}"
        assert "2 runs are job 1 of SLURM" in fedlit_cli(command).succeeded()
        for name in NAMES:
            play(Path("runs/trial"), name, fedlit_cli, monkeypatch)
        assert "finished" in fedlit_cli(f"{command} --status true").succeeded()
        monkeypatch.setenv(FOLLOWING, "1")
        assert "2 runs in the report" in fedlit_cli(command).succeeded()
        assert slurm.submitted == 2

    def test_a_refused_job_leaves_nothing_in_the_queue(self, slurm, cluster, fedlit_cli):
        write(Path(), SWEEP)
        slurm.refuses("sbatch: error: invalid partition specified: gpu")
        fedlit_cli("sweep --config sweep.yaml --on cluster.yaml").refused(
            "sbatch: invalid partition specified: gpu", code=2
        )
        assert not Path("runs/trial/jobs/sweep.json").exists()


class TestLooking:
    def test_status_says_what_waits_runs_has_finished_and_has_failed(
        self, submitted, slurm, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        slurm.lists({"1_0": "RUNNING|None", "1_1": "PENDING|Resources"})
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert "its job is running, 0 rounds done" in out
        assert "pending: Resources" in out
        slurm.lists({})
        play(submitted, NAMES[0], fedlit_cli, monkeypatch)
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert re.search(rf"{NAMES[0]} +finished", out)
        assert "no output: can its node see" in out
        (submitted / "jobs" / "1_1.log").write_text("one\nsrun: the node is on fire\n")
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert "failed, or cancelled" in out
        assert "the node is on fire" in out

    def test_in_a_pipe_each_run_is_one_line(self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("COLUMNS", "80")
        long = "a-method-whose-name-does-not-fit-into-half-a-line-of-a-terminal"
        write(Path(), {**SWEEP, "cases": {long: {"federation.aggregators": ["FedAvg"]}}})
        fedlit_cli(f"sweep --config sweep.yaml --on {cluster}").succeeded()
        slurm.lists({"1_0": "PENDING|Resources"})
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert re.search(rf"{long},lr=0.1,seed=0 +pending: Resources", out)

    def test_cancel_ends_what_waits_and_runs_and_the_job_after_them(self, submitted, slurm, fedlit_cli):
        slurm.lists({"1_1": "PENDING|Resources", "2": "PENDING|Dependency"})
        assert "cancelled 1 jobs" in fedlit_cli("sweep --config sweep.yaml --cancel true").succeeded()
        assert slurm.calls == ["scancel 2 1_1"]
        slurm.lists({})
        assert re.search(rf"{NAMES[1]} +cancelled", fedlit_cli("sweep --config sweep.yaml --status true").succeeded())

    def test_print_jobs_lists_commands_that_train_the_runs(self, fedlit_cli):
        write(Path(), SWEEP)
        lines = fedlit_cli("sweep --config sweep.yaml --print_jobs true").succeeded().splitlines()
        assert lines == [f"fedlit job {Path.cwd()}/runs/trial/jobs/{name}.yaml" for name in NAMES]
        fedlit_cli(lines[0].removeprefix("fedlit ")).succeeded()
        assert Path("runs/trial", NAMES[0], "result.json").exists()


PYTHON = """#!/bin/sh
echo "$@" >> words
[ -e ends ] && exit $(cat ends)
trap 'exit 138' USR1
touch began
while :; do sleep 0.05; done
"""
"""A command in place of Python that ends with a code, or waits for SIGUSR1."""


class TestScript:
    """The script of an array, run by bash."""

    @pytest.fixture
    def started(self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen]:
        def start(setup: str = "", states: str = "RUNNING", restarts: int = 0, task: int = 0) -> subprocess.Popen:
            python = Path("python").absolute()
            python.write_text(PYTHON)
            python.chmod(0o755)
            cluster.write_text(yaml.safe_dump({"requeues": 3, "setup": setup}))
            write(Path(), SWEEP)
            with monkeypatch.context() as stub:
                stub.setattr(sys, "executable", str(python))
                fedlit_cli(f"sweep --config sweep.yaml --on {cluster}").succeeded()
            slurm.lists({f"1_{task}": f"{states}|None"} if states else {})
            names = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_RESTART_COUNT": str(restarts)}
            words = ["bash", slurm.folder / "1.sh"]
            return subprocess.Popen(words, env=os.environ | names, stdout=subprocess.PIPE, text=True)

        return start

    @pytest.mark.parametrize(
        ("restarts", "states", "again"), [(0, "RUNNING", True), (3, "RUNNING", False), (0, "", False)],
        ids=["stopped", "stopped too often", "cancelled"],
    )  # fmt: skip
    def test_a_stopped_job_waits_again(self, started, slurm, restarts: int, states: str, again: bool):
        script = started(restarts=restarts, states=states, task=1)
        wait_for(Path("began"))
        script.send_signal(signal.SIGTERM)
        said = script.communicate(timeout=20)[0]
        assert script.returncode == 138
        assert slurm.calls == (["scontrol requeue 1_1"] if again else [])
        assert ("waits in the queue" in said, "after 3 other starts" in said) == (again, restarts == 3)
        words = Path("words").read_text()
        assert re.fullmatch(rf"-m fedlit job \S+/runs/trial/jobs/{NAMES[1]}.yaml --submitted_by 0.1.0\n", words)

    def test_a_signal_before_python_has_started_lets_it_wait_again(self, started, slurm):
        script = started(setup="touch began; sleep 0.5; set -e")
        wait_for(Path("began"))
        script.send_signal(signal.SIGTERM)
        script.communicate(timeout=20)
        assert (script.returncode, slurm.calls) == (143, ["scontrol requeue 1_0"])
        assert not Path("words").exists()

    @pytest.mark.parametrize("code", ["0", "1", "137"])
    def test_what_ended_by_itself_does_not_start_again(self, started, slurm, code: str):
        Path("ends").write_text(code)
        script = started(setup="set -e")
        script.communicate(timeout=20)
        assert (script.returncode, slurm.calls) == (int(code), [])


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestJob:
    def test_a_run_that_fails_does_not_stop_the_others_of_its_job(
        self, slurm, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch
    ):
        cluster.write_text("runs_a_job: 2\nparallel: 3\n")
        write(Path(), {**SWEEP, "seeds": [0, 1]})
        fedlit_cli(f"sweep --config sweep.yaml --on {cluster}").succeeded()
        folder = Path("runs/trial")
        assert options_of(slurm.script(1))["array"] == "0-1%3"
        assert "${runs[@]:SLURM_ARRAY_TASK_ID*2:2}" in slurm.script(1)
        assert list(kept_tasks(folder).values()) == ["1_0", "1_0", "1_1", "1_1"]
        one, other = list(kept_tasks(folder))[:2]
        file = folder / "jobs" / f"{one}.yaml"
        file.write_text(file.read_text().replace("lr: 0.1", "lr: -1"))
        fedlit_cli(f"job {file} {folder}/jobs/{other}.yaml").refused(code=1)
        assert Path(folder, other, "result.json").exists()
        slurm.lists({"1_1": "RUNNING|None"})
        out = fedlit_cli("sweep --config sweep.yaml --status true").succeeded()
        assert re.search(rf"{one} +failed", out)
        assert out.count("its job is running, 0 rounds done") == 2

    def test_runs_whose_directories_have_the_same_name_all_run(self, slurm, cluster, fedlit_cli):
        tuning = {key: value for key, value in SWEEP.items() if key != "grid"} | {
            "ranges": {"model.lr": [0.1, 0.05]}, "sampler": "grid",
            "rule": {"seeds": [7], "experiment": "{experiment}-grid-{case}"},
        }  # fmt: skip
        write(Path(), tuning).rename("tune.yaml")
        fedlit_cli(f"tune --config tune.yaml --on {cluster}").succeeded()
        files = " ".join(f"runs/trial/jobs/{name}.yaml" for name in kept_tasks(Path("runs/trial"), "tune"))
        fedlit_cli(f"job {files}").succeeded()
        finished = sorted(file.parent for file in Path("runs").glob("*/*/result.json"))
        tries = [f"runs/trial-grid-{case}/lr-{lr},seed=7" for case in ("fedavg", "scaffold") for lr in (0.05, 0.1)]
        assert finished == list(map(Path, tries))

    @pytest.mark.slow
    def test_a_job_that_a_signal_stops_continues_its_runs(self, submitted, tmp_path, monkeypatch):
        files = [f"{submitted}/jobs/{name}.yaml" for name in NAMES]
        words = [sys.executable, "-m", "fedlit", "job", *files]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        wait_for(submitted / NAMES[0] / ".wanted.yaml")
        job.send_signal(signal.SIGUSR1)
        assert "exit code 138" in job.communicate(timeout=60)[0]
        assert job.returncode == 138
        assert not (submitted / NAMES[1]).exists()
        assert subprocess.run(words, check=True, capture_output=True, text=True).stdout.count("exit code 0") == 2

    def test_a_node_that_does_not_see_the_folder_says_so(self, submitted, fedlit_cli):
        shutil.rmtree(submitted / "jobs")
        printed = fedlit_cli(f"job {submitted}/jobs/{NAMES[0]}.yaml")
        printed.refused(f"found none on {os.uname().nodename}", "choose a folder that all nodes see", code=1)

    @pytest.mark.slow
    def test_what_mlflow_gets_is_sent_later_once_and_with_its_times(self, fedlit_cli):
        tracked = {**BASE, "logger": {"class_path": "MLflowTracker", "init_args": {"tracking_uri": "sqlite:///m.db"}}}
        sweep = {key: value for key, value in SWEEP.items() if key != "cases"} | {"experiment": "tracked"}
        write(Path(), sweep, tracked)
        (line,) = fedlit_cli("sweep --config sweep.yaml --print_jobs true").succeeded().splitlines()
        fedlit_cli(line.removeprefix("fedlit ")).succeeded()
        assert not Path("m.db").exists()
        ended = time.time()
        time.sleep(0.01)
        log = "runs log runs/tracked --tracking_uri sqlite:///m.db"
        assert "sent runs/tracked/lr=0.1,seed=0" in fedlit_cli(log).succeeded()
        assert "nothing to send" in fedlit_cli(log).succeeded()
        (run,) = connect("sqlite:///m.db").search_runs(["1"])
        assert (run.info.status, run.info.run_name) == ("FINISHED", "lr=0.1,seed=0")
        history = connect("sqlite:///m.db").get_metric_history(run.info.run_id, "1-val/auroc_macro")
        assert [metric.step for metric in history] == [1, 2]
        times = [run.info.start_time, *(metric.timestamp for metric in history), run.info.end_time]
        assert times == sorted(times)
        assert times[1] < times[2]
        assert times[-1] <= ended * 1000

    @pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "link", "folder"])
    def test_only_files_of_the_run_are_sent(self, tmp_path, name: str):
        run, secret = tmp_path / "runs" / "one", tmp_path / "secret"
        (run / "folder").mkdir(parents=True)
        secret.write_text("a")
        for link in (run / "link", run / "folder" / "link"):
            link.symlink_to(secret)
        info = RunInfo(run, "trial", "one", {}, {}, resumed=False)
        journal = Journal(info, MetricsFile(run / "metrics.csv"), {})
        journal.start()
        for path in (run / "roc.png", run / name):
            path.is_dir() or path.exists() or path.touch()
            journal.add_file(path, "")
        journal.close("FINISHED", 0)
        with pytest.warns(UserWarning, match=f"expected files below {run}, found .*{name}; it is not sent"):
            notes = Notes.read(run)
        assert [path.name for path, _ in notes.files] == ["roc.png"]

    def test_another_fedlit_on_the_node_is_refused(self, submitted, fedlit_cli):
        printed = fedlit_cli(f"job {submitted}/jobs/{NAMES[0]}.yaml --submitted_by 0.0.9")
        printed.refused("expected fedlit 0.0.9, which submitted it, found 0.1.0 on this node", code=1)

    def test_a_run_of_the_same_job_on_another_node_is_taken_over(self, tmp_path, slurm, monkeypatch):
        held = '{"pid": 1, "host": "elsewhere", "started": "", "boot": "another", "job": "7"}'
        (tmp_path / HOLDER).write_text(held)
        slurm.lists({"7": "RUNNING|None"})
        with refused(ConfigError, "held by", "elsewhere"):
            RunLock(tmp_path).acquire()
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        lock = RunLock(tmp_path)
        lock.acquire()
        lock.release()

    def test_a_run_of_a_job_that_slurm_no_longer_lists_is_taken_over(self, tmp_path, slurm):
        (tmp_path / HOLDER).write_text('{"pid": 1, "host": "elsewhere", "started": "", "boot": "another", "job": "7"}')
        slurm.lists({})
        lock = RunLock(tmp_path)
        lock.acquire()
        lock.release()


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
        write(Path(), SWEEP)
        fedlit_cli(line).refused(words, code=2)

    def test_one_seed_is_no_array(self, cluster, fedlit_cli):
        write(Path(), SWEEP)
        fedlit_cli("fit --config base.yaml --on cluster.yaml").refused("--on: expected several seeds, found one")
        line = "fit --config base.yaml --seed 0,1 --sites loopback:2 --on cluster.yaml"
        fedlit_cli(line).refused("--sites: expected one seed, found 2")

    def test_without_slurm_the_error_names_the_other_way(self, cluster, fedlit_cli, monkeypatch: pytest.MonkeyPatch):
        write(Path(), SWEEP)
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
