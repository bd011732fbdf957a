"""A sweep on a real SLURM of one node: two runs are preempted or out of time, and nothing differs.

Debian's packages slurmctld, slurmd, slurm-client and munge suffice; the test starts them as root and stops them.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from runs import Kept, assert_same_run, free_port
from small_slurm import kept_tasks
from sweeps import BASE, GRID, write

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)) or os.getuid() != 0, reason="SLURM and munge are not installed, or no root"
    ),
]

SLOW = """
import time
from pathlib import Path

from fedlit.testing import ToyNet


class SlowNet(ToyNet):
    def training_step(self, batch, index):
        if self.lr == 0.1 and Path("slow").exists():
            time.sleep(0.3)
        return super().training_step(batch, index)
"""
"""A toy whose runs with one learning rate last while a file exists."""

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={d}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=30
SchedulerParameters=requeue_delay=1,sched_interval=2,bf_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=2000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A SLURM of one node, this machine."""
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    values = {
        "host": socket.gethostname(),
        "ctld": free_port(),
        "d": free_port(),
        "folder": folder,
        "cpus": os.cpu_count(),
    }
    (folder / "slurm.conf").write_text(CONF.format(**values))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    files = {
        f"--{name}": folder / f"munge.{name}" for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
    }
    files["--key-file"].write_bytes(os.urandom(128))
    files["--key-file"].chmod(0o600)
    munge = ["munged", "--force", "--foreground", *(str(word) for pair in files.items() for word in pair)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # they have log files
    daemons = [subprocess.Popen(munge, **quiet)]
    time.sleep(1)
    daemons += [subprocess.Popen(words, **quiet) for words in (["slurmctld", "-D"], ["slurmd", "-D"])]
    try:
        deadline = time.monotonic() + 60
        while "idle" not in asked("sinfo", "--noheader", "--format", "%T", check=False):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def asked(*words: str, check: bool = True) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=check).stdout


def fedlit(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "fedlit", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for(what: Callable[[], bool], seconds: float = 900) -> None:
    deadline, began = time.monotonic() + seconds, {}
    while not what():
        # A job that waits again would begin after two minutes. Its former process needs seconds to end.
        for job in asked("squeue", "--noheader", "--array", "--states", "PD", "--format", "%i %r").splitlines():
            name, reason = job.split(maxsplit=1)
            if reason.strip() != "BeginTime":
                began.pop(name, None)
            elif time.monotonic() - began.setdefault(name, time.monotonic()) > 4:
                asked("scontrol", "update", f"JobId={name}", "StartTime=now", check=False)
        assert time.monotonic() < deadline, asked("squeue", "--array")
        time.sleep(0.5)


def test_a_sweep_of_twelve_runs_equals_the_sweep_of_one_process(cluster, tmp_path, monkeypatch):
    base = {**BASE, "federation": {**BASE["federation"], "rounds": 30}, "model": {"class_path": "slow.SlowNet"}}
    sweep = {**GRID, "seeds": [0], "grid": {"model.lr": [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]}}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for place in ("there", "here"):
        write(tmp_path / place, sweep, base)
        (tmp_path / place / "slow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path / "there")
    Path("cluster.yaml").write_text("cpus: 1\nmemory: 500M\n")
    Path("slow").touch()
    began = time.monotonic()
    print(fedlit("sweep", "--config", "sweep.yaml", "--on", "cluster.yaml"))
    print(f"submitted in {time.monotonic() - began:.1f} s")
    runs, (preempted, out_of_time) = Path("runs/trial"), ("fedavg,lr=0.1,seed=0", "scaffold,lr=0.1,seed=0")
    assert "nothing was submitted" in fedlit("sweep", "--config", "sweep.yaml", "--on", "cluster.yaml")

    def starts(name: str) -> int:
        log = runs / "jobs" / f"{kept_tasks(runs)[name]}.log"
        return log.read_text().count("start ") if log.exists() else 0

    done: list[str] = []

    def interrupted() -> bool:
        for name in (preempted, out_of_time):
            if starts(name) == done.count(name) + 1 and rounds(runs / name) > 2 * starts(name):
                task = kept_tasks(runs)[name]
                if name == preempted and done.count(name) < 2:
                    asked("scontrol", "requeue", task)
                    done.append(name)
                elif name == out_of_time and name not in done:
                    asked("scontrol", "update", f"JobId={task}", "TimeLimit=1")
                    done.append(name)
        return starts(preempted) == 3 and starts(out_of_time) >= 2

    wait_for(interrupted)
    print(fedlit("sweep", "--config", "sweep.yaml", "--status", "true"))
    Path("slow").unlink()
    wait_for(lambda: (runs / "sweep.csv").exists() and not asked("squeue", "--noheader").strip())
    print(asked("tail", "-n", "+1", *map(str, sorted(runs.glob("jobs/*.log")))))
    there = pd.read_csv(runs / "sweep.csv")
    monkeypatch.chdir(tmp_path / "here")
    fedlit("sweep", "--config", "sweep.yaml")
    here = pd.read_csv(runs / "sweep.csv")
    print(here.drop(columns="directory").to_string())
    assert list(here["status"]) == ["finished"] * 12
    pd.testing.assert_frame_equal(there.drop(columns="directory"), here.drop(columns="directory"), check_exact=True)
    for name in there["name"]:
        one, other = (tmp_path / place / runs / name for place in ("there", "here"))
        assert_same_run(Kept(one), Kept(other))
        files = sorted(file.relative_to(one) for file in one.glob("predictions/**/*") if file.is_file())
        assert files
        assert [(one / file).read_bytes() for file in files] == [(other / file).read_bytes() for file in files]


def rounds(run: Path) -> int:
    """Number of completed rounds of a run."""
    file = run / "metrics.csv"
    lines = file.read_text().splitlines()[1:] if file.exists() else []
    return max((int(line.partition(",")[0]) for line in lines), default=0)
