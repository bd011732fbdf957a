"""The runs that are compared, from run directories or from MLflow: settings, metrics by round, predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import pandas as pd
import yaml

from fedlit.errors import ConfigError
from fedlit.grouping import APART
from fedlit.metrics.auroc import slug
from fedlit.predictions import FOLDER, Predictions, read
from fedlit.run import Result, flatten
from fedlit.tracking.base import MetricsFile

Notes = list[str]
"""What was left out of a comparison, and why, a sentence each."""


class Place(Protocol):
    """Where a run's files and metrics are."""

    def files(self, folder: str = "") -> list[str]:
        """Names of the files in a folder of the run, sorted; none where there is no such folder."""

    def file(self, path: str) -> Path | None:
        """A file of the run on this machine, or None where the run has none."""

    def logged(self) -> Sequence[str]:
        """Keys of the metrics of a run without ``metrics.csv``."""

    def history(self, key: str) -> pd.Series:
        """Such a metric by step."""


@dataclass(frozen=True, eq=False)
class PastRun:
    """A run that has ended.

    Attributes:
        where: its directory, or its id in MLflow.
        name: of the run.
        seed: None where unknown.
        status: how it ended.
        git: revision of the code, "" where unknown.
        tags: of the run.
        settings: its configuration, flat, less the seed and what does not change numbers.
        place: of its files.
    """

    where: str
    name: str
    seed: int | None
    status: str
    git: str
    tags: Mapping[str, str]
    settings: Mapping[str, object]
    place: Place = field(repr=False)

    @cached_property
    def sets(self) -> tuple[str, ...]:
        """Test sets of which there are predictions, as their files are called."""
        return tuple(n.removesuffix(".parquet") for n in self.place.files(FOLDER) if n.endswith(".parquet"))

    def predictions(self, name: str) -> Predictions | None:
        """Scores and labels of a test set, or None where there are none."""
        file = self.place.file(f"{FOLDER}/{slug(name)}.parquet") if slug(name) in self.sets else None
        return None if file is None else read(file)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of its metrics."""
        return tuple(self.place.logged() if self._metrics is None else self._metrics)

    def metric(self, key: str) -> pd.Series:
        """A metric by round; empty where the run has none of that name."""
        if key not in self.keys:
            return pd.Series(dtype=float)
        return self.place.history(key) if self._metrics is None else self._metrics[key]

    @cached_property
    def _metrics(self) -> dict[str, pd.Series] | None:
        file = self.place.file("metrics.csv")
        if file is None:
            return None
        rows = pd.DataFrame(MetricsFile(file).rows(), columns=["step", "key", "value"])
        return {str(key): group.set_index("step")["value"] for key, group in rows.groupby("key", sort=False)}


@dataclass(frozen=True)
class Directory:
    """The place of a run that is on this machine."""

    path: Path

    def files(self, folder: str = "") -> list[str]:
        return sorted(entry.name for entry in (self.path / folder).glob("*") if entry.is_file())

    def file(self, path: str) -> Path | None:
        return self.path / path if (self.path / path).is_file() else None

    def logged(self) -> Sequence[str]:
        return ()

    def history(self, key: str) -> pd.Series:
        return pd.Series(dtype=float)


def settings_of(config: Mapping[str, object]) -> dict[str, object]:
    """A configuration as flat settings of a method."""
    return {key: value for key, value in flatten(dict(config)).items() if not key.startswith(APART)}


def from_directory(path: Path) -> PastRun | None:
    """The run of a directory; None where it has not ended.

    Raises:
        ConfigError: it is not the directory of a run.
    """
    file = path / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{path}: expected a run directory (runs/EXPERIMENT/RUN), a folder of them or the id of an MLflow run, "
            "found no config.yaml there"
        )
    if Result.read(path) is None:
        return None
    config = yaml.safe_load(file.read_text())
    tags = {str(key): str(value) for key, value in (config.get("tags") or {}).items()}
    return PastRun(str(path), path.name, config.get("seed"), "FINISHED", "", tags, settings_of(config), Directory(path))


def directories(path: Path) -> list[Path]:
    """The run directories that a path means: itself, or all that are in it, by name."""
    if (path / "config.yaml").is_file():
        return [path]
    return sorted(found.parent for found in path.glob("*/config.yaml")) or [path]


def load(
    names: Sequence[str], experiment: str | None, tags: Mapping[str, str], tracking_uri: str, folder: Path
) -> tuple[list[PastRun], Notes]:
    """The runs that are named, and what was left out.

    Args:
        names: run directories, folders of them, or ids of MLflow runs.
        experiment: of MLflow, all of whose runs take part; None: those named alone, or with tags those of any.
        tags: that the runs of MLflow have.
        tracking_uri: of MLflow.
        folder: for what is downloaded.

    Raises:
        ConfigError: nothing is named, a name means nothing, a run that was named has not ended, or MLflow does not
            answer.
    """
    if not names and experiment is None and not tags:
        raise ConfigError("compare: name runs (run directories, a folder of them, ids of MLflow runs) or --experiment")
    runs: list[PastRun] = []
    notes: Notes = []
    store = None
    if experiment is not None or tags or any(not Path(name).exists() for name in names):
        from fedlit.reports.compare.mlflow_runs import MLflowRuns  # MLflow takes seconds to import

        store = MLflowRuns(tracking_uri, folder)
    for name in names:
        path = Path(name)
        if path.is_file():
            raise ConfigError(f"{name}: expected a run directory, found a file; {path.parent} means all runs in it")
        if not path.exists():
            runs.append(store.run(name))
            continue
        for found in directories(path):
            run = from_directory(found)
            if run is not None:
                runs.append(run)
            elif found == path:
                raise ConfigError(f"{path} has not finished: go on with it (--ckpt_path {path}), or leave it out")
            else:
                notes.append(f"{found} has not finished; --ckpt_path {found} goes on with it.")
    if store is not None and (experiment is not None or tags):
        found, unfinished = store.search(experiment, tags)
        runs += found
        notes += unfinished
    return _distinct(runs, notes), notes


def _distinct(runs: Sequence[PastRun], notes: Notes) -> list[PastRun]:
    """The newest of the runs that have the same settings and seed: repeats are no evidence of their own."""
    kept: dict[object, PastRun] = {}
    for run in runs:
        settings = tuple(sorted((key, str(value)) for key, value in run.settings.items()))
        same = (settings, run.seed if run.seed is not None else run.where)
        if same in kept and kept[same].where != run.where:
            notes.append(f"{kept[same].where} has the settings and the seed of {run.where}, which was taken instead.")
        kept.pop(same, None)
        kept[same] = run
    return list(kept.values())
