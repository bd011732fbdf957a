"""Loading of runs from run directories and from MLflow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.reports.compare.external import read_external
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.tracking.names import CHOSEN, STAGE
from fedlit.tracking.run import Result


def from_directory(path: Path) -> PastRun | None:
    """Return the run of a directory, or None if it has not finished.

    Raises:
        ConfigError: If it is not a run directory, or its result is damaged.
    """
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: expected a run directory (runs/EXPERIMENT/RUN), a folder of them or the id of an MLflow run, "
            "found a folder without config.yaml; name another"
        )
    try:
        finished = Result.read(path) is not None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path / 'result.json'}: expected the result of a run, found a damaged file ({error}); rewrite it with "
            f"`--ckpt_path {path}`, or leave the run out"
        ) from error
    return PastRun.read(path) if finished else None


def directories(path: Path) -> list[Path]:
    """Return the path if it is a run directory, else the run directories in it, by name."""
    if (path / "config.yaml").is_file():
        return [path]
    return sorted(file.parent for file in path.glob("*/config.yaml")) or [path]


def load_runs(
    names: Sequence[str], experiment: str | None, tags: Mapping[str, str], tracking_uri: str, folder: Path
) -> tuple[list[PastRun], Notes]:
    """Return the named runs, and notes on what was left out.

    Args:
        names: Run directories, folders of them, ids of MLflow runs, or files of predictions.
        experiment: MLflow experiment whose runs are added. If it is None, runs with the tags are added from all
            experiments.
        tags: Tags of the runs that are added from MLflow; without tags and experiment, none are added.
        tracking_uri: Tracking URI of MLflow.
        folder: Folder for downloads.

    Raises:
        ConfigError: If nothing is named, a name is unknown, a named run has not finished, or MLflow does not answer.
    """
    if not names and experiment is None and not tags:
        raise ConfigError(
            "compare: name runs (run directories, a folder of them, ids of MLflow runs), or give --experiment or --tags"
        )
    runs: list[PastRun] = []
    notes: Notes = []
    store = None
    if experiment is not None or tags or any(not Path(name).exists() and not _is_path(name) for name in names):
        from fedlit.reports.compare.mlflow_runs import MLflowRuns  # MLflow takes seconds to import

        store = MLflowRuns(tracking_uri, folder)
    for name in names:
        path = Path(name)
        if path.is_file() and path.suffix.lower() in (".csv", ".parquet"):
            runs.append(read_external(path))
            continue
        if path.is_file():
            raise ConfigError(
                f"{name}: expected a run directory, or a CSV or Parquet file of predictions, found another file; name "
                f"{path.parent} for all runs in it"
            )
        if not path.exists():
            if _is_path(name):
                raise ConfigError(f"{name}: expected a run directory or the id of a run in MLflow, found neither")
            runs.append(store.run(name))
            continue
        for directory in directories(path):
            run = from_directory(directory)
            if run is not None:
                runs.append(run)
            elif directory == path:
                raise ConfigError(f"{path} has not finished; resume it with --ckpt_path {path}, or leave it out")
            else:
                notes.append(f"{directory} is left out, as it has not finished; --ckpt_path {directory} resumes it.")
    if store is not None and (experiment is not None or tags):
        finished, unfinished = store.search(experiment, tags)
        runs += finished
        notes += unfinished
    return _distinct(_without_tries(runs, notes), notes), notes


def _is_path(name: str) -> bool:
    return "/" in name and not name.startswith("runs:/")


def _without_tries(runs: list[PastRun], notes: Notes) -> list[PastRun]:
    """Return the runs without the tries of `fedlit tune` if there are final runs, which the same methods have."""
    runs = _with_choices(runs)
    tries = [run for run in runs if run.tags.get(STAGE) == "try"]
    if not tries or len(tries) == len(runs):
        return runs
    notes.append(f"{len(tries)} tries of `fedlit tune` are left out; name them without other runs to compare them.")
    return [run for run in runs if run not in tries]


def _with_choices(runs: list[PastRun]) -> list[PastRun]:
    """Return the runs; tries that their seed has chosen, by the table of their tuning, are tagged so."""
    chosen: dict[Path, set[str]] = {}
    for folder in {run.directory.parent for run in runs if run.tags.get(STAGE) == "try"}:
        if (file := folder / "tune.csv").is_file():
            table = pd.read_csv(file, dtype=str)
            chosen[folder] = {*table.loc[table["stage"] == CHOSEN, "name"]}
    return [
        replace(run, tags={**run.tags, STAGE: CHOSEN})
        if run.directory.name in chosen.get(run.directory.parent, ())
        else run
        for run in runs
    ]


def _distinct(runs: Sequence[PastRun], notes: Notes) -> list[PastRun]:
    """Return the last of the runs with the same settings and seed, as a repeated run adds no evidence."""
    distinct: dict[object, PastRun] = {}
    for run in runs:
        settings = tuple(sorted((key, str(value)) for key, value in run.settings.items()))
        same = (settings, run.draw, run.seed if run.seed is not None else run.where)
        if same in distinct and Path(distinct[same].where).absolute() == Path(run.where).absolute():
            notes.append(f"{run.where} is named more than once; it is used once.")
        elif same in distinct:
            notes.append(f"{distinct[same].where} is left out, as {run.where} has the same settings and seed.")
        distinct.pop(same, None)
        distinct[same] = run
    return list(distinct.values())
