"""A sweep of toys over two methods and two seeds, and a tracker that records what a run knows."""

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from fedlit.core.system.processes import cores
from fedlit.experiment.jobs import CommandLine
from fedlit.experiment.planned_run import WANTED
from fedlit.tracking.base import Tracker
from fedlit.tracking.run import Result

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


class Recorder(Tracker):
    """A tracker that writes tags and process properties into the run's directory."""

    def start(self, run, metrics) -> None:
        daemon = multiprocessing.current_process().daemon
        recorded = {"tags": dict(run.tags), "pid": os.getpid(), "daemon": daemon, "argv": sys.argv[1:],
                    "cores": cores()}  # fmt: skip
        (run.directory / "recorded.json").write_text(json.dumps(recorded))


def recorded(run: Path) -> dict:
    """Return what `Recorder` has written into a run's directory."""
    return json.loads((run / "recorded.json").read_text())


def write(folder: Path, sweep: dict, base: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(base or BASE))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return folder / "sweep.yaml"


def finish_at_once(jobs: Iterable[CommandLine], at_once: int, started: Callable, ended: Callable, *_: object) -> int:
    """Replace `run_jobs`: every run finishes with the same AUROC, and trains nothing."""
    for job in jobs:
        started(job)
        finish(job.log.parent, 0.5)
        ended(job, 0, False)
    return 0


def finish(run: Path, auroc: float) -> None:
    """Write what a started run of two rounds leaves, with the AUROC of its best model."""
    (run / "metrics.csv").write_text(f"step,key,value\n2,val/auroc_macro,{auroc}\n")
    shutil.copy(run / WANTED, run / "config.yaml")
    (run / "checkpoints/round-000002").mkdir(parents=True)
    (run / "checkpoints/round-000002/manifest.json").touch()
    Result(2, 2, 1.0).write(run)
