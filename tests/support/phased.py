"""Configurations of runs with phases."""

import copy
import io
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from runs import Kept, Place

from fedlit.cli.main import main

PHASE, MAIN = 3, 2
STEPS = {"class_path": "ConstantSchedule", "init_args": {"window": 2, "unit": "steps"}}
PRETRAIN = {
    "name": "pretrain",
    "clients": ["site-1"],
    "rounds": PHASE,
    "schedule": STEPS,
    "objective": {"class_path": "BCE"},
    "optimizer": {"class_path": "Adam", "init_args": {"lr": 1e-3}},
}
CONFIG = {
    "phases": [PRETRAIN],
    "data": {"class_path": "toys.ToyData"},
    "model": {
        "class_path": "ImageClassifier",
        "init_args": {
            "backbone": "small_cnn",
            "objective": {"class_path": "AUCSaddle"},
            "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.002}},
        },
    },
    "federation": {
        "aggregators": [{"class_path": "CODASCA", "init_args": {"eta_g": 0.9}}],
        "rounds": MAIN,
        "schedule": STEPS,
    },
}


def changed(**keys) -> dict:
    """The configuration with other values at dotted keys, dots written as ``__``."""
    config = copy.deepcopy(CONFIG)
    for key, value in keys.items():
        *parents, last = key.split("__")
        place = config
        for parent in parents:
            place = place[parent]
        place[last] = value
    return config


def phase(**keys) -> dict:
    return PRETRAIN | keys


HEAD = phase(name="head", clients=None, trainable="head", keep="all")
"""A phase that trains only the head on the body of the one before it, and keeps both."""


def place(path: Path, config: dict) -> Place:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return Place(path / "runs", f"--config {path / 'config.yaml'} --name run")


def printed(line: str, code: int = 0) -> str:
    """Run a command line in this process, which has the parser already; return what it prints."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(line))
    assert (stopped.value.code or 0) == code, out.getvalue()
    return out.getvalue()


def ended(here: Place, options: str = "", command: str = "fit", code: int = 0) -> str:
    """Run ``fedlit fit`` (or another command) of a place in this process; return what it prints."""
    where = f"--run_dir {here.path} --logger false --federation.workers 1"
    return printed(f"{command} {where} {here.options} {options}", code)


def finished(path: Path, config: dict, options: str = "") -> tuple[Kept, str]:
    """A successful run, and its output."""
    here = place(path, config)
    return here.run("run"), ended(here, options)
