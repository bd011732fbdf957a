"""A sweep of toys over two methods and two seeds, and a tracker that records what a run knows."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import yaml

from fedlit.core.system.processes import cores
from fedlit.tracking.base import Tracker

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
