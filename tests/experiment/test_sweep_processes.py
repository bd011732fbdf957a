"""Processes of a sweep: what they inherit, and sweeps that continue after they were stopped, killed or have failed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from runs import Kept, Place, assert_same_run, execute, wait_until
from sweeps import BASE, GRID, recorded, write

import fedlit
from fedlit.core.system.processes import cores
from fedlit.experiment.sweep import load_sweep, locked, run_sweep

pytestmark = pytest.mark.usefixtures("folder")

SLOW = {
    "experiment": "slow",
    "config": ["base.yaml"],
    "set": {"model.class_path": "awkward.Slow", "model.seconds": 0.05, "federation.rounds": 6,
            "federation.checkpoint_every": 1, "logger": "sweeps.Recorder"},
    "seeds": [0, 1],
}  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment folder of the slow sweep, whose runs need not wait here."""
    place = tmp_path_factory.mktemp("slow")
    at_once = {**SLOW, "set": SLOW["set"] | {"model.seconds": 0}, "run_dir": str(place / "runs")}
    sweep = load_sweep(write(place, at_once))
    assert (run_sweep(sweep, jobs=2, console=Console(quiet=True))["status"] == "finished").all()
    return sweep.directory


MANY = """
import sys
from pathlib import Path

from fedlit.experiment import jobs

jobs.PRELOADED = ()
for names in (["one"], ["two", "three"]):
    lines = [jobs.CommandLine(name, ("--version",), Path(f"{name}.log")) for name in names]
    jobs.run_jobs(lines, 1, lambda *_: None, lambda *_: None, lambda: None, imports=["noted"])
"""
"""A program that runs one job, and then two more, all of which have a module imported for them."""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestInheritance:
    def test_a_run_may_have_workers_and_other_ranks(self, uninterrupted: Path):
        known = recorded(uninterrupted / "seed=1")
        assert not known["daemon"]
        assert known["argv"][:2] == ["fit", "--config"]  # what starts the other ranks repeats these words

    def test_runs_side_by_side_share_the_cores(self, uninterrupted: Path):
        for name in ("seed=0", "seed=1"):
            assert recorded(uninterrupted / name)["cores"] == max(1, cores() // 2)

    def test_jobs_after_a_single_one_have_modules_imported_for_them(self, folder: Path):
        Path("noted.py").write_text("print('imported', file=open('imports', 'a'))\n")
        paths = {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
        subprocess.run([sys.executable, "-c", MANY], env=os.environ | paths, check=True)
        for name in ("one", "two", "three"):
            assert Path(f"{name}.log").read_text() == f"fedlit {fedlit.__version__}\n"
        assert len(Path("imports").read_text().splitlines()) == 1

    def test_tags_reach_the_tracker(self, uninterrupted: Path):
        tags = recorded(uninterrupted / "seed=1")["tags"]
        assert tags["fedlit.group"].startswith("FedAvg-")
        assert {"fedlit.method": "FedAvg", "fedlit.engine": "LocalEngine"}.items() <= tags.items()


SIGNALLED = """
import os, signal, sys
from runs import own_fork_server
from fedlit.cli.main import run
own_fork_server()
os.setsid()
signal.signal(int(sys.argv.pop(1)), signal.Handlers(int(sys.argv.pop(1))))
run()
"""
"""The command `fedlit`, as the leader of a group of processes that takes a signal in a certain way."""


@pytest.mark.slow
class TestGoingOn:
    def test_a_stopped_sweep_goes_on_to_the_same_numbers(self, uninterrupted, folder: Path, fedlit_cli):
        line = f"sweep --config {write(folder, SLOW)} --jobs 2"
        runs = [Kept(folder / f"runs/slow/seed={seed}") for seed in (0, 1)]

        def stop() -> None:
            wait_until(lambda: all(max(run.rounds, default=0) >= 2 for run in runs))
            os.kill(os.getpid(), signal.SIGINT)

        stopper = threading.Thread(target=stop)
        stopper.start()
        code, out, _ = fedlit_cli(line)
        stopper.join()
        assert code == 130
        assert "repeat the command to continue" in out
        assert [line.split("  ")[1] for line in out.splitlines() if line.startswith("seed=")] == ["stopped"] * 2
        assert "left" not in out
        assert list(pd.read_csv("runs/slow/sweep.csv")["status"]) == ["stopped"] * 2
        self.goes_on(line, runs, uninterrupted, fedlit_cli)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("signum", "handler"),
        [(signal.SIGINT, signal.SIG_IGN), (signal.SIGHUP, signal.SIG_DFL)],
        ids=["background", "hang-up"],
    )
    def test_a_signal_before_a_run_has_begun_stops_it(self, folder: Path, signum, handler):
        """Also if the shell makes the sweep ignore Ctrl-C, as it does with ``fedlit sweep ... &`` in a script."""
        words = "sweep", "--config", write(folder, SLOW)
        command = execute(SIGNALLED, folder, int(signum), int(handler), *words)
        started = "started seed=0: tail -F runs/slow/seed=0/console.log\n"
        assert wait_until(lambda: started in command.output, command), command.output
        os.killpg(command.process.pid, signum)  # as a terminal does it: all of the group get it
        code, said = command.wait(), command.output
        assert code == 128 + signum, said
        assert re.search(r"^seed=0  stopped  0:00:\d\d$", said, re.MULTILINE), said
        assert not re.search("failed|Error|Traceback|Interrupt|seed=1", said), said
        assert list(pd.read_csv("runs/slow/sweep.csv")["status"]) == ["stopped", "waiting"]

    @pytest.mark.slow
    def test_a_killed_sweep_takes_its_runs_along_and_goes_on(self, uninterrupted, folder: Path, fedlit_cli):
        line = f"sweep --config {write(folder, SLOW)} --run_dir {folder / 'runs'} --jobs 2"
        runs = [Kept(folder / f"runs/slow/seed={seed}") for seed in (0, 1)]
        command = Place(folder).start(line)
        assert wait_until(lambda: all(max(run.rounds, default=0) >= 2 for run in runs), command), command.output
        command.process.kill()
        assert command.wait() == -signal.SIGKILL
        pids = [recorded(run.path)["pid"] for run in runs]
        wait_until(lambda: not any(map(alive, pids)))
        self.goes_on(line, runs, uninterrupted, fedlit_cli)

    def goes_on(self, line: str, runs: list[Kept], uninterrupted: Path, fedlit_cli) -> None:
        assert not any((run.path / "result.json").exists() for run in runs)
        fedlit_cli(line).succeeded()
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
        out = fedlit_cli("sweep --config sweep.yaml").succeeded()
        assert "2 runs, 1 finished before" in out
        assert sorted(p.name for p in Path("runs/e").iterdir() if p.is_dir()) == ["bad,seed=0", "good,seed=0"]

    @pytest.mark.slow
    def test_a_changed_configuration_is_refused_with_the_difference(self, fedlit_cli, folder: Path):
        sweep = {"experiment": "e", "config": ["base.yaml"], "seeds": [0, 1]}
        assert fedlit_cli(f"sweep --config {write(folder, {**sweep, 'seeds': [1]})}")[0] == 0
        write(folder, sweep, {**BASE, "model": {"class_path": "toys.ToyNet", "init_args": {"lr": 0.7}}})
        ended = fedlit_cli("sweep --config sweep.yaml")
        ended.refused("runs/e/seed=1", "lr: 0.1 there, 0.7 now")
        assert not Path("runs/e/seed=0").exists()

        write(folder, {**sweep, "seeds": [1], "set": {"federation.rounds": 1}})
        fedlit_cli("sweep --config sweep.yaml").refused("rounds: 2 there, 1 now")
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
        line = f"sweep --config {write(folder, {'experiment': 'e', 'config': ['base.yaml']})}"
        fedlit_cli(line).refused("runs/e/seed=0")
        assert Path("runs/e/seed=0/thesis.tex").exists()

    def test_two_sweeps_do_not_share_a_folder(self, fedlit_cli, folder: Path):
        with locked(folder / "runs/trial/sweep.csv"):
            fedlit_cli(f"sweep --config {write(folder, GRID)}").refused("runs/trial/sweep.csv", code=2)
        assert [p.name for p in Path("runs/trial").iterdir()] == [".sweep.lock"]
