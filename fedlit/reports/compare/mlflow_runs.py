"""Runs in MLflow, fedlit's or others', downloaded as run directories with the files that a comparison reads."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.predictions.scoring import QUIET
from fedlit.predictions.table import FOLDER
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.tracking.addresses import absent, without_credentials
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.mlflow import prepare
from fedlit.tracking.names import IS_PARENT, PHASE, key_of
from fedlit.tracking.run import PRIVACY
from fedlit.tracking.store import cause, connect, error_code

FILES = ("config.yaml", "metrics.csv", "partition.png", PRIVACY)
"""Files that are downloaded besides the predictions; checkpoints and models are not."""


class MLflowRuns:
    """An MLflow store of runs, which are downloaded to a folder with one directory per run.

    Raises:
        ConfigError: If MLflow is not installed, or a database file does not exist.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        if not prepare(**QUIET):
            raise ConfigError(
                "compare: runs in MLflow need the package mlflow; pip install mlflow, or name run directories"
            )
        if missing := absent(uri):
            raise ConfigError(
                f"--tracking_uri {uri}: {missing}; change to the folder in which the runs were started, name another "
                "store, or name run directories (runs/EXPERIMENT/RUN)"
            )
        self._uri, self._shown, self._folder = uri, without_credentials(uri), folder
        with self._asking():
            self._client = connect(uri)

    def run(self, run_id: str) -> PastRun:
        """Download a run by its id.

        Raises:
            ConfigError: If no run has this id, it has not finished, or MLflow does not answer.
        """
        with self._asking(f"{run_id}: no such folder exists, and MLflow at {self._shown} has no run of that id"):
            run = self._client.get_run(run_id.removeprefix("runs:/"))
        if run.info.status != "FINISHED":
            raise ConfigError(
                f"the run {run.info.run_name!r} ({run_id}) is {run.info.status}; wait for its end, resume it with "
                "--ckpt_path RUN_DIRECTORY, or leave it out"
            )
        return self._downloaded(run)

    def search(self, experiment: str | None, tags: Mapping[str, str]) -> tuple[list[PastRun], Notes]:
        """Download all finished runs of an experiment with these tags, oldest first, and note all others.

        Raises:
            ConfigError: If the experiment does not exist or has no such run, or MLflow does not answer.
        """
        with self._asking():
            ids = {each.name: each.experiment_id for each in self._pages(self._client.search_experiments)}
        if experiment is not None and experiment not in ids:
            hint = near(experiment, ids) or f"; choose one of {', '.join(sorted(ids)[:12])}"
            raise ConfigError(f"--experiment: MLflow at {self._shown} has no experiment {experiment!r}{hint}")
        searched = [ids[experiment]] if experiment is not None else list(ids.values())
        wanted, oldest = " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items()), ["attributes.start_time ASC"]
        with self._asking():
            runs = list(self._pages(self._client.search_runs, searched, filter_string=wanted, order_by=oldest))
        runs = [run for run in runs if not {IS_PARENT, PHASE} & run.data.tags.keys()]
        having = f" with the tags {dict(tags)}" if tags else ""
        if not runs:
            raise ConfigError(f"MLflow at {self._shown} has no run{having} in {experiment or 'any experiment'}")
        finished = [run for run in runs if run.info.status == "FINISHED"]
        others = [run.info for run in runs if run not in finished]
        notes = [f"{run.run_name} ({run.run_id}) is left out, as its status is {run.status}." for run in others]
        if not finished:
            raise ConfigError(f"no run{having} in {experiment or 'any experiment'} has finished: {' '.join(notes)}")
        return [self._downloaded(run) for run in finished], notes

    def _downloaded(self, run: Any) -> PastRun:
        run_id, tags = run.info.run_id, run.data.tags
        directory = self._folder / run_id
        (directory / FOLDER).mkdir(parents=True, exist_ok=True)
        with self._asking():
            paths = [each.path for part in (None, FOLDER) for each in self._client.list_artifacts(run_id, part)]
            for path in paths:
                if path in FILES or Path(path).match(f"{FOLDER}/*.parquet"):
                    self._client.download_artifacts(run_id, path, str((directory / path).parent))
            if "metrics.csv" not in paths:
                self._write_metrics(run, directory)
        if "config.yaml" not in paths:
            (directory / "config.yaml").write_text(yaml.safe_dump(dict(run.data.params)))
        return replace(
            PastRun.read(directory),
            where=run_id,
            name=run.info.run_name or run_id,
            git=tags.get("fedlit.git", tags.get("mlflow.source.git.commit", "")[:12]),
            tags={key: value for key, value in tags.items() if not key.startswith("mlflow.")},
            client_weights=run.data.params.get("weights", ""),
        )

    def _write_metrics(self, run: Any, directory: Path) -> None:
        """Write ``metrics.csv`` for a run that did not log it, with the last value at each step."""
        file = MetricsFile(directory / "metrics.csv")
        for key in sorted(run.data.metrics):
            history = self._client.get_metric_history(run.info.run_id, key)
            values = {each.step: each.value for each in sorted(history, key=lambda each: (each.step, each.timestamp))}
            for step, value in values.items():
                file.append({key_of(key): value}, step)
        file.close()

    @contextmanager
    def _asking(self, otherwise: str = "") -> Iterator[None]:
        """Context manager that raises ConfigError for failed requests, with ``otherwise`` for a missing run."""
        try:
            yield
        except Exception as error:
            if otherwise and error_code(error) in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise ConfigError(otherwise) from error
            raise ConfigError(
                f"MLflow at {self._shown} does not answer ({cause(error, self._uri)}); start it, correct "
                "--tracking_uri, or compare run directories, which needs no MLflow: fedlit compare runs/EXPERIMENT"
            ) from error

    @staticmethod
    def _pages(ask: Any, *args: Any, **options: Any) -> Iterator[Any]:
        token = None
        while True:
            yield from (page := ask(*args, **options, page_token=token))
            if not (token := page.token):
                return
