"""Runs in MLflow, fedlit's own and others': what a comparison needs of them is downloaded, and nothing else."""

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedlit.errors import ConfigError
from fedlit.mistakes import near
from fedlit.reports.compare.runs import Notes, PastRun, settings_of
from fedlit.tracking.mlflow import ENVIRONMENT
from fedlit.tracking.mlflow_store import _code, _connect, absent, cause, without_password

QUIET = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class MLflowRuns:
    """A store of runs.

    Args:
        uri: its tracking URI.
        folder: for what is downloaded.

    Raises:
        ConfigError: MLflow is not installed, or a database file is not there.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError("runs in MLflow need MLflow: pip install mlflow, or name run directories")
        for name, value in (ENVIRONMENT | QUIET).items():
            os.environ.setdefault(name, value)
        if missing := absent(uri):
            raise ConfigError(
                f"--tracking_uri {uri}: {missing}; go to the folder in which the runs were started, name another store, "
                "or name run directories (runs/EXPERIMENT/RUN)"
            )
        self.uri, self.folder = uri, folder
        with self._asking():
            self._client = _connect(uri)

    def run(self, run_id: str) -> PastRun:
        """A run by its id.

        Raises:
            ConfigError: there is none, it has not finished, or MLflow does not answer.
        """
        with self._asking(f"{run_id}: there is no such folder, and no run of that id in MLflow at {self._shown}"):
            found = self._client.get_run(run_id.removeprefix("runs:/"))
        if found.info.status != "FINISHED":
            raise ConfigError(
                f"the run {found.info.run_name!r} ({run_id}) is {found.info.status}: wait for its end, go on with it "
                "(--ckpt_path RUN_DIRECTORY), or leave it out"
            )
        return self._past(found)

    def search(self, experiment: str | None, tags: Mapping[str, str]) -> tuple[list[PastRun], Notes]:
        """All finished runs of an experiment with these tags, the oldest first, and a note for every other one.

        Raises:
            ConfigError: there is no such experiment, it has no such run, or MLflow does not answer.
        """
        with self._asking():
            known = {each.name: each.experiment_id for each in self._pages(self._client.search_experiments)}
        if experiment is not None and experiment not in known:
            hint = near(experiment, known) or f"; there are {', '.join(sorted(known)[:12])}"
            raise ConfigError(f"--experiment: MLflow at {self._shown} has no experiment {experiment!r}{hint}")
        ids = [known[experiment]] if experiment is not None else list(known.values())
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        with self._asking():
            runs = list(
                self._pages(self._client.search_runs, ids, filter_string=wanted, order_by=["attributes.start_time ASC"])
            )
        having = f" with the tags {dict(tags)}" if tags else ""
        if not runs:
            raise ConfigError(f"MLflow at {self._shown} has no run{having} in {experiment or 'any experiment'}")
        finished = [run for run in runs if run.info.status == "FINISHED"]
        notes = [
            f"{run.info.run_name} ({run.info.run_id}) is {run.info.status}, not finished."
            for run in runs
            if run not in finished
        ]
        if not finished:
            raise ConfigError(f"no run{having} in {experiment or 'any experiment'} has finished: {' '.join(notes)}")
        return [self._past(run) for run in finished], notes

    @property
    def _shown(self) -> str:
        return without_password(self.uri)

    def _past(self, run: Any) -> PastRun:
        place = Artifacts(self, run)
        file = place.file("config.yaml")
        config = {} if file is None else yaml.safe_load(file.read_text())
        params, tags = dict(run.data.params), dict(run.data.tags)
        seed = config.get("seed", params.get("seed"))
        return PastRun(
            run.info.run_id,
            run.info.run_name or run.info.run_id,
            int(seed) if str(seed).lstrip("-").isdigit() else None,
            run.info.status,
            tags.get("fedlit.git", tags.get("mlflow.source.git.commit", "")[:12]),
            {key: value for key, value in tags.items() if not key.startswith("mlflow.")},
            settings_of(config or params),
            place,
        )

    @contextmanager
    def _asking(self, otherwise: str = "") -> Iterator[None]:
        """Tell a failed request in words.

        Args:
            otherwise: what it means that something does not exist.
        """
        try:
            yield
        except Exception as error:
            missing = _code(error) in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
            if missing and otherwise:
                raise ConfigError(otherwise) from error
            raise ConfigError(
                f"MLflow at {self._shown} gives no answer ({cause(error)}); is it running, and is "
                "--tracking_uri right? Run directories are compared without it: fedlit compare runs/EXPERIMENT"
            ) from error

    @staticmethod
    def _pages(ask: Any, *args: Any, **options: Any) -> Iterator[Any]:
        token = None
        while True:
            page = ask(*args, **options, page_token=token)
            yield from page
            token = page.token
            if not token:
                return


class Artifacts:
    """The place of a run in MLflow."""

    def __init__(self, store: MLflowRuns, run: Any) -> None:
        self._store, self._run = store, run
        self._folders: dict[str, list[str]] = {}
        self._histories: dict[str, pd.Series] = {}

    def files(self, folder: str = "") -> list[str]:
        if folder not in self._folders:
            with self._store._asking():
                found = self._store._client.list_artifacts(self._run.info.run_id, folder or None)
            self._folders[folder] = sorted(Path(each.path).name for each in found if not each.is_dir)
        return self._folders[folder]

    def file(self, path: str) -> Path | None:
        folder, _, name = path.rpartition("/")
        if name not in self.files(folder):
            return None
        target = self._store.folder / self._run.info.run_id
        target.mkdir(parents=True, exist_ok=True)
        with self._store._asking():
            return Path(self._store._client.download_artifacts(self._run.info.run_id, path, str(target)))

    def logged(self) -> Sequence[str]:
        return sorted(self._run.data.metrics)

    def history(self, key: str) -> pd.Series:
        if key not in self._histories:
            with self._store._asking():
                points = self._store._client.get_metric_history(self._run.info.run_id, key)
            points = sorted(points, key=lambda point: (point.step, point.timestamp))
            series = pd.Series([p.value for p in points], index=[p.step for p in points], dtype=float)
            self._histories[key] = series[~series.index.duplicated(keep="last")]
        return self._histories[key]
