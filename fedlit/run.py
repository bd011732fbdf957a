"""A run's directory, ``runs/<experiment>/<run>/``, and everything that is written there and to the tracker."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import yaml

from fedlit import checkpoint
from fedlit.errors import CheckpointError
from fedlit.tracking.base import MetricsFile, RunInfo, RunStatus, Tracker

MAY_DIFFER = (
    "config",
    "ckpt_path",
    "experiment",
    "name",
    "run_dir",
    "fast_dev_run",
    "logger",
    "tags",
    "fabric.accelerator",
    "fabric.devices",
    "fabric.num_nodes",
    "federation.rounds",
    "federation.patience",
    "federation.workers",
    "federation.checkpoint_every",
    "data.init_args.cache_dir",
)
"""Keys of the configuration that a resumed run may change: they do not change its numbers."""

RESERVED = ".reserved"
"""Lies in a directory that is kept for a run which has not started."""


@dataclass(frozen=True)
class Result:
    """What a run that ended well leaves in ``result.json`` of its directory.

    Attributes:
        status: ``FINISHED``.
        rounds: that were asked for; patience may have ended the run before.
        best_round: completed rounds of the model that was tested.
        seconds: of the process that ended the run.
        metrics: ``test/...``; NaN where undefined, which the file calls null.
    """

    rounds: int
    best_round: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    status: str = "FINISHED"

    def write(self, directory: Path) -> None:
        """A process that is killed leaves the whole file or none."""
        metrics = {key: value if value == value else None for key, value in self.metrics.items()}
        (directory / ".result.json").write_text(json.dumps(asdict(self) | {"metrics": metrics}, indent=1) + "\n")
        os.replace(directory / ".result.json", directory / "result.json")

    @classmethod
    def read(cls, directory: Path) -> "Result | None":
        """The result in a run's directory, or None where it has none."""
        file = directory / "result.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text())
        metrics = {key: float("nan") if value is None else value for key, value in found.pop("metrics").items()}
        return cls(**found, metrics=metrics)


class Run:
    """One run of one experiment.

    Args:
        directory: ``runs/<experiment>/<run>``.
        tracker: gets the metrics and artifacts too.
        resumed: whether the directory holds an earlier part of the run.
        main: whether this process writes; the other ranks of a run only read.
    """

    def __init__(self, directory: Path, tracker: Tracker, resumed: bool = False, main: bool = True) -> None:
        self.directory, self.tracker, self.resumed, self.main = Path(directory), tracker, resumed, main
        self.metrics = MetricsFile(self.directory / "metrics.csv")
        self.client_metrics = MetricsFile(self.directory / "client_metrics.csv")
        self._started = False

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def start(
        self, config: str, params: Mapping[str, str | int | float | bool], tags: Mapping[str, str], rounds: int
    ) -> None:
        """Open the run after ``rounds`` completed rounds: what a killed run logged beyond them is dropped.

        A run of several phases is opened by the first of them that has something to do.
        """
        if not self.main or self._started:
            return
        self._started = True
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "result.json").unlink(missing_ok=True)  # what goes on has not ended
        # A killed process leaves the old or the new file: half a configuration could not be resumed.
        (self.directory / ".config.yaml").write_text(config)
        os.replace(self.directory / ".config.yaml", self.directory / "config.yaml")
        for file in (self.metrics, self.client_metrics):
            file.truncate(rounds)
        info = RunInfo(self.directory, self.directory.parent.name, self.directory.name, params, tags, self.resumed)
        self.tracker.start(info, self.metrics)
        self.artifact(self.directory / "config.yaml")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of a round to ``metrics.csv`` and to the tracker."""
        if self.main:
            self.metrics.append(metrics, step)
            self.tracker.log_metrics(metrics, step)

    def log_clients(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of many clients to ``client_metrics.csv`` alone."""
        if self.main:
            self.client_metrics.append(metrics, step)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep a file of the run directory with the tracker's run."""
        if self.main:
            self.tracker.log_artifact(path, folder)

    def note(self, name: str, text: str) -> None:
        """Keep a line of text as a file of the run."""
        if self.main:
            (self.directory / name).write_text(text + "\n")
            self.artifact(self.directory / name)

    def finish(self, status: RunStatus) -> None:
        if not self.main:
            return
        if self.client_metrics.size():
            table = pd.DataFrame(self.client_metrics.rows(), columns=["step", "key", "value"])
            table.to_parquet(self.directory / "client_metrics.parquet", index=False)
            self.artifact(self.directory / "client_metrics.parquet")
        self.metrics.close()
        self.client_metrics.close()
        self.tracker.finish(status)
        with suppress(OSError):  # holds files, unless the run was refused before its first round
            self.directory.rmdir()


def new_directory(root: Path, experiment: str, name: str | None) -> Path:
    """A directory that no run has yet, new or reserved: reruns never overwrite."""
    stem = name or time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        path = root / experiment / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
        with suppress(FileNotFoundError):
            (path / RESERVED).unlink()  # whoever removes it has the directory
            return path
    raise FileExistsError(f"{root / experiment / stem} exists a thousand times; choose another name")


def find_checkpoint(root: Path, experiment: str, which: str) -> Path | None:
    """The checkpoint that ``--ckpt_path`` names: ``last``, ``best``, a run directory or a checkpoint.

    Raises:
        CheckpointError: there is no such checkpoint; None for ``last`` and ``best`` of an experiment without runs.
    """
    if which in ("last", "best"):
        last = [found for run in (root / experiment).glob("*") if (found := _last(run))]
        if not last:
            return None
        newest = run_of(max(last, key=lambda path: path.stat().st_mtime))
        found = _last(newest) if which == "last" else checkpoint.find(newest / "checkpoints", which)
        if found is None:
            raise CheckpointError(f"{newest} has no best checkpoint yet; use --ckpt_path last")
        return found
    path = Path(which)
    found = path if (path / "manifest.json").exists() else _last(path)
    if found is None:
        raise CheckpointError(
            f"--ckpt_path {which}: expected last, best, a run directory (runs/<experiment>/<run>) or "
            "a checkpoint (.../checkpoints/round-NNNNNN); found no manifest.json there"
        )
    return found


def run_of(path: Path) -> Path:
    """The run directory of a checkpoint, of its main part or of one of its phases."""
    folder = path.parent.parent
    return folder.parent.parent if folder.parent.name == "phases" else folder


def _last(run: Path) -> Path | None:
    """A run's newest checkpoint; that of its newest phase where the main part has none yet."""
    of_phases = [p for p in (checkpoint.find(f, "last") for f in run.glob("phases/*/checkpoints")) if p]
    return checkpoint.find(run / "checkpoints", "last") or max(of_phases, key=lambda p: p.stat().st_mtime, default=None)


def config_difference(directory: Path, config: str) -> list[str]:
    """Where a run's configuration and another differ in what gives other numbers, a line each.

    Raises:
        CheckpointError: there is no run.
    """
    file = directory / "config.yaml"
    if not file.exists():
        raise CheckpointError(f"{directory} has no config.yaml: not the directory of a fedlit run")
    before, now = flatten(yaml.safe_load(file.read_text())), flatten(yaml.safe_load(config))
    keys = [k for k in sorted({*before, *now}) if not k.startswith(MAY_DIFFER) and before.get(k) != now.get(k)]
    return [f"{k}: {before.get(k, 'absent')} there, {now.get(k, 'absent')} now" for k in keys]


def check_same_config(directory: Path, config: str) -> None:
    """Refuse to continue a run under another configuration.

    Raises:
        CheckpointError: anything but rounds, workers, devices and logger differs; shows the difference.
    """
    if differences := config_difference(directory, config):
        rows = "\n".join(f"  {row}" for row in differences)
        raise CheckpointError(
            f"{directory} was started with another configuration:\n{rows}\nOnly rounds, workers, "
            f"devices and logger may change on resume; start a new run, or use --config {directory / 'config.yaml'}"
        )


def flatten(config: object, prefix: str = "") -> dict[str, object]:
    """Nested mappings and lists as one mapping with dotted keys."""
    if isinstance(config, dict) and config:
        parts = [flatten(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in config.items()]
    elif isinstance(config, list) and any(isinstance(v, dict) for v in config):
        parts = [flatten(v, f"{prefix}.{i}") for i, v in enumerate(config)]
    else:
        return {prefix: config}
    return {k: v for part in parts for k, v in part.items()}


def git_revision() -> str:
    """The revision of the working directory's repository, with a mark where it has changes; "" outside of one."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=os.getcwd())
        return done.stdout.strip()
    return ""
