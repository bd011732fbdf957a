"""A run directory, ``runs/<experiment>/<run>/``, and output to it and to the tracker."""

import csv
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import isfinite, isnan
from pathlib import Path

import yaml

from fedlit.core.checkpoints.manifest import newest
from fedlit.core.errors import CheckpointError, ConfigError, TrainingError
from fedlit.core.system import documents
from fedlit.core.system.files import unwritable, whole
from fedlit.tracking.addresses import masked
from fedlit.tracking.base import DataInfo, MetricsFile, RunInfo, RunStatus, Tracker
from fedlit.tracking.names import COUNT

MAY_DIFFER = (
    "config", "ckpt_path", "experiment", "name", "run_dir", "fast_dev_run", "figures", "logger", "tags",
    "callbacks", "fabric.accelerator", "fabric.devices", "fabric.num_nodes", "federation.rounds", "federation.patience",
    "federation.workers", "federation.checkpoint_every", "federation.state_memory",
    "federation.quorum", "federation.deadline", "federation.on_site_error", "data.init_args.cache_dir",
    "data.init_args.device",
)  # fmt: skip
"""Keys of the configuration that may differ on a resume, because they do not change results."""

RESTORE = "restore it from a copy (MLflow keeps one with the run), or do not use this run"
"""Advice for a damaged configuration."""

PHASES = "phases"
"""Folder in a run's directory with the runs of its phases, ``RUN/phases/NAME/``."""

VALIDATION_COUNTS = "validation.csv"
"""Name of the file with the positives and negatives of each class in all validation sets together."""

PRIVACY = "privacy.json"

RESERVED = ".reserved"
"""Name of the file that reserves a directory for a run that has not started."""


@dataclass(frozen=True)
class Result:
    """Result of a completed run, stored as ``result.json`` in its directory."""

    rounds: int  # Requested number of rounds; patience may have ended the run earlier.
    best_round: int  # Number of completed rounds of the tested model, which is its step in ``metrics.csv``.
    seconds: float  # Duration of the process that completed the run.
    # Values of `test/...`; undefined values are NaN, and null in the file. Infinite ones are text there: JSON has none.
    metrics: dict[str, float] = field(default_factory=dict)
    status: str = "FINISHED"
    client_weights: str = ""  # ``examples`` or ``uniform``, as the clients were weighted; "" if it is not recorded.

    def write(self, directory: Path) -> None:
        """Write ``result.json`` atomically."""
        metrics = {key: None if isnan(v) else v if isfinite(v) else str(v) for key, v in self.metrics.items()}
        with whole(directory / "result.json") as draft:
            draft.write_text(json.dumps(asdict(self) | {"metrics": metrics}, indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "Result | None":
        """Read the result in a run directory; returns None if there is none.

        Raises:
            CheckpointError: The file is damaged.
        """
        file = directory / "result.json"
        try:
            fields = dict(documents.parse_json(file.read_text()))
            fields.pop("phase_rounds", None)  # in results from before phases were runs
            metrics = {key: float("nan" if v is None else v) for key, v in fields.pop("metrics").items()}
            return cls(**fields, metrics=metrics)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{file} cannot be read as the result of a run: {type(error).__name__}: {error}. Remove it and resume "
                f"the run, which tests its model again: fedlit fit --config {directory / 'config.yaml'} --ckpt_path "
                f"{directory}"
            ) from error


def metric_of(directory: Path, key: str) -> float:
    """Return a metric of a run's best model, or the newest value of an unfinished run; NaN if it is not logged."""
    result = Result.read(directory)
    if result is not None and key in result.metrics:
        return result.metrics[key]
    values = {step: value for step, name, value in MetricsFile(directory / "metrics.csv").rows() if name == key}
    newest = next(reversed(values.values()), float("nan"))
    return values.get(result.best_round, newest) if result else newest


class Run:
    """One run of one experiment.

    Args:
        resumed: Whether the directory contains an earlier part of the run.
        main: Whether this process writes; other ranks of a run only read.
        config: The resolved configuration, as YAML.
        params: Parameters for the tracker.
        figures: Whether the partition and ROC curves are drawn.
    """

    def __init__(
        self,
        directory: Path,
        tracker: Tracker,
        resumed: bool = False,
        main: bool = True,
        config: str = "",
        params: Mapping[str, str | int | float | bool] | None = None,
        figures: bool = True,
    ) -> None:
        self.directory, self.tracker, self.resumed, self.main = Path(directory), tracker, resumed, main
        self.config, self.params, self.figures = config, params or {}, figures
        self.metrics = MetricsFile(self.directory / "metrics.csv")
        self.client_metrics = MetricsFile(self.directory / "client_metrics.csv")
        self._started = False

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.directory / "checkpoints"

    def announce(self) -> None:
        """Write the configuration, by which a run is found and resumed, into the directory."""
        if self.main:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Written atomically, because a run with an incomplete configuration could not be resumed.
            with whole(self.directory / "config.yaml") as draft:
                draft.write_text(self.config)

    def start(self, tags: Mapping[str, str], rounds: int, data: DataInfo | None = None) -> None:
        """Open the run after ``rounds`` completed rounds; metrics of later rounds, from a killed run, are removed."""
        if not self.main:
            return
        self.announce()
        self._started = True
        (self.directory / "result.json").unlink(missing_ok=True)  # a resumed run is not complete
        for file in (self.metrics, self.client_metrics):
            file.truncate(rounds)
        above, name = run_above(self.directory), self.directory.name
        experiment, shown = (above.parent.name, f"{above.name}/{name}") if above else (self.directory.parent.name, name)
        info = RunInfo(self.directory, experiment, shown, self.params, tags, self.resumed, data=data, phase_of=above)
        self.tracker.start(info, self.metrics)
        self.artifact(self.directory / "config.yaml")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of a round to ``metrics.csv`` and to the tracker, if the directory is still in place."""
        if self.main:
            self.check_in_place()
            self.metrics.append(metrics, step)
            self.tracker.log_metrics(metrics, step)

    def check_in_place(self) -> None:
        """Refuse a directory that was renamed or deleted, because the run would be split over two directories."""
        if self._started and not self._in_place:
            raise TrainingError(
                f"{self.directory} was renamed or deleted while its run trained. If it was renamed, resume it under "
                "its new name NEW: fedlit fit --config NEW/config.yaml --ckpt_path NEW"
            )

    @property
    def _in_place(self) -> bool:
        return (self.directory / "config.yaml").is_file()

    def log_clients(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of many clients only to ``client_metrics.csv``."""
        if self.main:
            self.client_metrics.append(metrics, step)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file of the run directory with the tracker."""
        if self.main:
            self.tracker.log_artifact(path, folder)

    def note(self, name: str, text: str) -> None:
        """Store a line of text as a file of the run."""
        if self.main:
            (self.directory / name).write_text(text + "\n")
            self.artifact(self.directory / name)

    def finish(self, status: RunStatus) -> None:
        """Close the run's files and its tracker."""
        if not self.main:
            return
        if self._in_place or not self._started:  # of a renamed directory, only the tracker remains
            self._write_tables()
        self.metrics.close()
        self.client_metrics.close()
        self.tracker.finish(status)

    def _write_tables(self) -> None:
        if self.client_metrics.size():
            from pandas import DataFrame

            table = DataFrame(self.client_metrics.rows(), columns=["step", "key", "value"])
            table.to_parquet(self.directory / "client_metrics.parquet", index=False)
            self.artifact(self.directory / "client_metrics.parquet")
        if write_counts(self.metrics.rows(), self.directory / "counts.csv"):
            self.artifact(self.directory / "counts.csv")


def write_counts(metrics: Iterable[tuple[int, str, float]], path: Path) -> bool:
    """Write a row per set and class with its positives and negatives; returns False if there are no counts."""
    table: dict[tuple[str, str], dict[str, int]] = {}
    for _, key, value in metrics:
        if (match := COUNT.fullmatch(key)) and value == value:
            table.setdefault((match["set"], match["class"]), {})[match["sign"]] = int(value)
    if table:
        with path.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("set", "class", "positives", "negatives"))
            rows.writerows((*names, counts.get("pos"), counts.get("neg")) for names, counts in table.items())
    return bool(table)


def new_directory(root: Path, experiment: str, name: str) -> Path:
    """Create or take a directory without a run, so that runs never overwrite each other.

    Raises:
        ConfigError: The directory cannot be created.
    """
    for number in range(1, 1000):
        path = root / experiment / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigError(
                f"--run_dir {root}: cannot create {path}: {error.strerror}; choose another folder"
            ) from error
        with suppress(FileNotFoundError):
            (path / RESERVED).unlink()  # the process that deletes it takes the directory
            return path
    raise FileExistsError(f"{root / experiment / name}: a thousand runs have this name; choose another name")


def check_writable(root: Path, experiment: str) -> None:
    """Refuse, before training, a folder that cannot be created or is not writable."""
    if reason := unwritable(root / experiment):
        raise ConfigError(f"--run_dir {root}: {reason}")


def find_run(root: Path, experiment: str, which: str, name: str | None = None) -> tuple[Path, Path | None] | None:
    """Find the run that ``--ckpt_path`` names, and its checkpoint, which is None while its phases are trained.

    It names a run directory, a checkpoint, or ``last`` or ``best``, of the newest run; with a name, of the newest run
    of that name, with or without a number. None if no run has a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not exist.
    """
    if which in ("last", "best"):
        begun = {run: last_checkpoint(run) for run in (root / experiment).glob("*") if is_called(run, name)}
        begun = {run: last.stat().st_mtime for run, last in begun.items() if last is not None}
        if not begun:
            return None
        from fedlit.core.checkpoints import checkpoint  # PyTorch, which a look at the state of a run does not need

        run = max(begun, key=begun.__getitem__)
        path = checkpoint.find(run / "checkpoints", which)
        if path is None and which == "best":
            raise CheckpointError(f"{run} has no best checkpoint yet; use --ckpt_path last")
        return run, path
    if (Path(which) / "manifest.json").exists():
        return run_of(Path(which)), Path(which)
    if last_checkpoint(Path(which)) is None:
        raise CheckpointError(
            f"--ckpt_path {which}: expected last, best, a run directory (runs/<experiment>/<run>) or "
            "a checkpoint (.../checkpoints/round-NNNNNN); found no manifest.json there"
        )
    return Path(which), newest(Path(which) / "checkpoints")


def is_called(run: Path, name: str | None) -> bool:
    """Check if a run has a name, to which repeated runs append a number such as -2."""
    return name is None or re.fullmatch(rf"{re.escape(name)}(-\d+)?", run.name) is not None


def runs_in(folder: Path) -> list[Path]:
    """Return the directories of started runs in the folder of an experiment, sorted by name."""
    return sorted(file.parent for file in folder.glob("*/config.yaml"))


def run_of(path: Path) -> Path:
    """Return the run directory of a checkpoint."""
    return path.parent.parent


def run_above(directory: Path) -> Path | None:
    """Return the directory of the run of which ``RUN/phases/NAME`` is a phase; None for any other directory."""
    above = directory.parent.parent
    return above if directory.parent.name == PHASES and (above / "config.yaml").is_file() else None


def last_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint of a run or, if it has none, of its phases."""
    of_phases = [p for p in (newest(f) for f in run.glob(f"{PHASES}/*/checkpoints")) if p]
    return newest(run / "checkpoints") or max(of_phases, key=lambda p: p.stat().st_mtime, default=None)


def config_difference(directory: Path, config: str) -> list[str]:
    """Return the differences between a run's configuration and another that change results, one line each.

    Raises:
        CheckpointError: The run does not exist.
    """
    before, now = flatten(read_config(directory)), flatten(documents.parse(config))
    keys = [k for k in sorted({*before, *now}) if not k.startswith(MAY_DIFFER) and before.get(k) != now.get(k)]
    return [f"{k}: {before.get(k, 'absent')} there, {now.get(k, 'absent')} now" for k in keys]


def read_config(directory: Path) -> dict:
    """Read the configuration of a run, with any credentials hidden.

    Raises:
        CheckpointError: The run does not exist, or its configuration cannot be read.
    """
    file = directory / "config.yaml"
    try:
        settings = masked(documents.parse(file.read_text()))
    except FileNotFoundError:
        raise CheckpointError(f"{directory} has no config.yaml: not the directory of a fedlit run") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{file} cannot be read as YAML: {reason}; {RESTORE}") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{file}: expected the keys of a configuration, found {str(settings)[:80]!r}; {RESTORE}")
    return settings


def check_same_config(directory: Path, config: str) -> None:
    """Refuse to resume a run with another configuration, except for rounds, workers, devices, callbacks and logger."""
    if differences := config_difference(directory, config):
        rows = "\n".join(f"  {row}" for row in differences)
        raise CheckpointError(
            f"{directory} was started with another configuration:\n{rows}\nOnly rounds, workers, devices, callbacks "
            f"and logger may change on resume; start a new run, or use --config {directory / 'config.yaml'}"
        )


def flatten(config: object, prefix: str = "") -> dict[str, object]:
    """Convert nested mappings and lists to one mapping with dotted keys."""
    if isinstance(config, dict) and config:
        parts = [flatten(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in config.items()]
    elif isinstance(config, list) and any(isinstance(v, dict) for v in config):
        parts = [flatten(v, f"{prefix}.{i}") for i, v in enumerate(config)]
    else:
        return {prefix: config}
    return {k: v for part in parts for k, v in part.items()}


def git_revision() -> str:
    """Return the revision of the working directory's Git repository, marked if it has changes, or ""."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=os.getcwd())
        return done.stdout.strip()
    return ""
