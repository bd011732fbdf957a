"""What a job of SLURM does on its node: its script, its runs, signals and locks."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import refused
from small_slurm import NAMES, SWEEP, kept_tasks, options_of
from sweeps import BASE, write

from fedlit.core.errors import ConfigError
from fedlit.experiment.cluster.submission import Cluster, Slurm, Submission
from fedlit.tracking.base import MetricsFile, RunInfo
from fedlit.tracking.journal import Journal, Notes
from fedlit.tracking.lock import HOLDER, RunLock
from fedlit.tracking.store import connect

pytestmark = pytest.mark.usefixtures("folder", "environment")

TABLE = Path("runs/trial/sweep.csv")

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
    def started(self, slurm, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen]:
        def start(setup: str = "", states: str = "RUNNING", restarts: int = 0, task: int = 0) -> subprocess.Popen:
            python = Path("python").absolute()
            python.write_text(PYTHON)
            python.chmod(0o755)
            runs = [SimpleNamespace(name=name, directory=Path("runs/trial", name)) for name in NAMES]
            with monkeypatch.context() as stub:
                stub.setattr(sys, "executable", str(python))
                submitted = Slurm(Cluster(requeues=3, setup=setup), ()).script(Submission(TABLE), runs)
            Path("task.sh").write_text(submitted)
            slurm.lists({f"1_{task}": f"{states}|None"} if states else {})
            names = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_RESTART_COUNT": str(restarts)}
            return subprocess.Popen(["bash", "task.sh"], env=os.environ | names, stdout=subprocess.PIPE, text=True)

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

    @pytest.mark.parametrize("code", ["0", "137"])
    def test_what_ended_by_itself_does_not_start_again(self, started, slurm, code: str):
        """The run has ended before the script first asks whether it is alive."""
        Path("ends").write_text(code)
        script = started(setup='set -e; kill() { sleep 0.2; builtin kill "$@"; }')
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

    @pytest.mark.slow
    def test_a_job_that_a_signal_stops_continues_its_runs(self, submitted, fedlit_cli, monkeypatch):
        files = [f"{submitted}/jobs/{name}.yaml" for name in NAMES]
        words = [sys.executable, "-m", "fedlit", "job", *files]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        wait_for(submitted / NAMES[0] / ".wanted.yaml")
        job.send_signal(signal.SIGUSR1)
        assert "exit code 138" in job.communicate(timeout=60)[0]
        assert job.returncode == 138
        assert not (submitted / NAMES[1]).exists()
        assert fedlit_cli(f"job {' '.join(files)}").succeeded().count("exit code 0") == 2

    def test_a_node_that_does_not_see_the_folder_or_has_another_fedlit_says_so(self, folder, fedlit_cli):
        printed = fedlit_cli("job jobs/one.yaml")
        printed.refused(f"found none on {os.uname().nodename}", "choose a folder that all nodes see", code=1)
        printed = fedlit_cli("job jobs/one.yaml --submitted_by 0.0.9")
        printed.refused("expected fedlit 0.0.9, which submitted it, found 0.1.0 on this node", code=1)

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
