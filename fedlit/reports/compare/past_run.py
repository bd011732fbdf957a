"""A finished run as a report reads it, and its costs: rounds, local steps, communicated bytes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlit.experiment.naming import APART, is_data_seed
from fedlit.metrics.auroc import slug
from fedlit.predictions.table import FOLDER, Predictions, read
from fedlit.reports.table import number, size
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import PRIVACY, Result, flatten, read_config

Notes = list[str]
"""Sentences about what was left out of a comparison, and why."""

DRIFT = "drift/client_drift"


@dataclass(frozen=True, eq=False)
class PastRun:
    """A finished run."""

    where: str  # Its directory, or its id in MLflow.
    name: str  # Name of the run.
    seed: int | None  # Its seed; None if unknown.
    git: str  # Revision of the code; empty if unknown.
    tags: Mapping[str, str]  # Tags of the run.
    settings: Mapping[str, object]  # Its flat configuration without seeds and settings that do not change results.
    directory: Path  # Folder of its files: the run directory, or a download from MLflow.
    draw: tuple[tuple[str, int], ...] = ()  # Seeds of its data by key; runs with the same seeds have the same data.
    table: Predictions | None = None  # Predictions of a file, whose test set has no name; None for a run directory.
    client_weights: str = ""  # ``examples`` or ``uniform``, as its clients were weighted; "" if it is not recorded.

    @classmethod
    def read(cls, directory: Path) -> "PastRun":
        """Read the run of a directory that has a ``config.yaml``."""
        config = read_config(directory)
        seed, tags = config.get("seed"), {str(key): str(value) for key, value in (config.get("tags") or {}).items()}
        flat = flatten(config)
        settings = {key: value for key, value in flat.items() if not key.startswith(APART) and not is_data_seed(key)}
        draw = tuple((key, int(value)) for key, value in flat.items() if is_data_seed(key) and str(value).isdigit())
        seed = int(seed) if str(seed).lstrip("-").isdigit() else None
        files = {"where": str(directory), "name": directory.name, "directory": directory}
        result = Result.read(directory)
        weights = result.client_weights if result else ""
        return cls(**files, seed=seed, git="", tags=tags, settings=settings, draw=draw, client_weights=weights)

    @property
    def unknown(self) -> bool:
        """Return True if it is a file of predictions from elsewhere, whose settings are unknown."""
        return self.table is not None and not any(key.startswith("federation.") for key in self.settings)

    @property
    def site(self) -> str | None:
        """Return the client of an individual model, which is the only one that trained; None for other runs."""
        clients = self.settings.get("federation.clients")
        return str(clients[0]) if isinstance(clients, list) and len(clients) == 1 else None

    @cached_property
    def privacy(self) -> Mapping[str, Any]:
        """Return the account of its epsilon; empty if its steps were not private."""
        file = self.directory / PRIVACY
        return json.loads(file.read_text()) if file.is_file() else {}

    @cached_property
    def sets(self) -> tuple[str, ...]:
        """Return the test sets with predictions, as named by their files."""
        return tuple(sorted(file.stem for file in (self.directory / FOLDER).glob("*.parquet")))

    def predictions(self, test_set: str) -> Predictions | None:
        """Return the predictions of a test set, or None if it has none; those from elsewhere are of any test set."""
        if self.table is not None:
            return self.table
        return read(self.directory / FOLDER / f"{slug(test_set)}.parquet") if slug(test_set) in self.sets else None

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of its metrics, in the order in which they were first logged."""
        return tuple(self._metrics)

    def metric(self, key: str) -> pd.Series:
        """Return a metric by round; empty if the run did not log it."""
        return self._metrics.get(key, pd.Series(dtype=float))

    @cached_property
    def _metrics(self) -> dict[str, pd.Series]:
        rows = pd.DataFrame(MetricsFile(self.directory / "metrics.csv").rows(), columns=["step", "key", "value"])
        return {str(key): group.set_index("step")["value"] for key, group in rows.groupby("key", sort=False)}


def mean_cost(runs: Sequence[PastRun]) -> pd.Series:
    """Return the means over runs of their costs; NaN if a run did not log a cost.

    They are ``rounds``, ``bytes`` up and down and local ``steps``, both over all clients, and the mean ``drift``.
    """
    costs = [
        {
            # An empty index has the maximum NaN, which fmax ignores.
            "rounds": np.fmax(*(run.metric(key).index.max() for key in ("round/stage", "bytes/up"))),
            "bytes": sent(run).max(),
            "steps": steps(run).max(),
            "drift": run.metric(DRIFT).mean(),
        }
        for run in runs
    ]
    return pd.DataFrame(costs).mean(skipna=False)


def cost_row(runs: Sequence[PastRun]) -> tuple[str, str, str, str]:
    """Return the mean rounds, bytes, local steps and drift of runs as text."""
    cost = mean_cost(runs)
    return number(cost.rounds), size(cost.bytes), number(cost.steps), number(cost.drift, ".3g")


def sent(run: PastRun) -> pd.Series:
    """Return the bytes up and down of all clients until the end of each round; empty if they were not logged."""
    return (run.metric("bytes/up") + run.metric("bytes/down")).dropna().sort_index().cumsum()


def steps(run: PastRun) -> pd.Series:
    """Return the local steps of all clients until the end of each round; empty if they were not logged."""
    return run.metric("round/steps").dropna().sort_index().cumsum()


def metric_against(run: PastRun, key: str, x: pd.Series | None = None) -> pd.Series:
    """Return a metric by round, or by the value of ``x`` at the round, such as that of :func:`sent`."""
    y = run.metric(key).dropna()
    if x is None:
        return y
    both = y.index.intersection(x.index)
    return pd.Series(y[both].to_numpy(), index=x[both].to_numpy())
