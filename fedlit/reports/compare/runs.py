"""The runs that are compared, from run directories and from MLflow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedlit.core.errors import ConfigError
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.tracking.run import Result


def from_directory(path: Path) -> PastRun | None:
    """Return the run of a directory, or None where it has not finished.

    Raises:
        ConfigError: If it is not the directory of a run.
    """
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: expected a run directory (runs/EXPERIMENT/RUN), a folder of them or the id of an MLflow run, "
            "found no config.yaml there"
        )
    try:
        finished = Result.read(path) is not None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path / 'result.json'}: expected the result of a run, found a damaged file ({error}). `--ckpt_path {path}` "
            "writes it anew; or leave the run out"
        ) from error
    return PastRun.read(path) if finished else None


def directories(path: Path) -> list[Path]:
    """Return the run directories that a path means: itself, or all that are in it, by name."""
    if (path / "config.yaml").is_file():
        return [path]
    return sorted(file.parent for file in path.glob("*/config.yaml")) or [path]


def load(
    names: Sequence[str], experiment: str | None, tags: Mapping[str, str], tracking_uri: str, folder: Path
) -> tuple[list[PastRun], Notes]:
    """Return the runs that are named, and what was left out.

    Args:
        names: Run directories, folders of them, or ids of MLflow runs.
        experiment: Experiment of MLflow all of whose runs take part; with None, those that are named, and those of any
            experiment that have the tags.
        tags: Tags that the runs of MLflow have.
        tracking_uri: Store of MLflow.
        folder: Folder for what is downloaded.

    Raises:
        ConfigError: If nothing is named, a name means nothing, a run that was named has not finished, or MLflow does
            not answer.
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
        for directory in directories(path):
            run = from_directory(directory)
            if run is not None:
                runs.append(run)
            elif directory == path:
                raise ConfigError(f"{path} has not finished: go on with it (--ckpt_path {path}), or leave it out")
            else:
                notes.append(f"{directory} has not finished; --ckpt_path {directory} goes on with it.")
    if store is not None and (experiment is not None or tags):
        finished, unfinished = store.search(experiment, tags)
        runs += finished
        notes += unfinished
    return _distinct(runs, notes), notes


def _distinct(runs: Sequence[PastRun], notes: Notes) -> list[PastRun]:
    """Return the newest of the runs that have the same settings and seed: a repeat is no further evidence."""
    newest: dict[object, PastRun] = {}
    for run in runs:
        settings = tuple(sorted((key, str(value)) for key, value in run.settings.items()))
        same = (settings, run.draw, run.seed if run.seed is not None else run.where)
        if same in newest and Path(newest[same].where).absolute() == Path(run.where).absolute():
            notes.append(f"{run.where} is named more than once: a run is no comparison with itself.")
        elif same in newest:
            notes.append(f"{newest[same].where} has the settings and the seed of {run.where}, which was taken instead.")
        newest.pop(same, None)
        newest[same] = run
    return list(newest.values())
