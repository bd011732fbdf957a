"""A run that has ended, as its directory tells it: settings, metrics by round, predictions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedlit.experiment.naming import APART, is_data_seed
from fedlit.metrics.auroc import slug
from fedlit.predictions.table import FOLDER, Predictions, read
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import flatten, read_config

Notes = list[str]
"""What was left out of a comparison, and why, a sentence each."""


@dataclass(frozen=True, eq=False)
class PastRun:
    """A finished run."""

    where: str  # Its directory, or its id in MLflow.
    name: str  # Name of the run.
    seed: int | None  # Its seed; None where unknown.
    git: str  # Revision of the code, "" where unknown.
    tags: Mapping[str, str]  # Tags of the run.
    settings: Mapping[str, object]  # Its configuration, flat, less the seed and what does not change numbers.
    directory: Path  # Folder of its files: a run directory, or what was downloaded of one.
    draw: tuple[tuple[str, int], ...] = ()  # Seeds of its data by key: what two runs share was drawn once.

    @classmethod
    def read(cls, directory: Path) -> "PastRun":
        """Return the run of a directory with a ``config.yaml``."""
        config = read_config(directory)
        seed, tags = config.get("seed"), {str(key): str(value) for key, value in (config.get("tags") or {}).items()}
        flat = flatten(config)
        settings = {key: value for key, value in flat.items() if not key.startswith(APART) and not is_data_seed(key)}
        draw = tuple((key, int(value)) for key, value in flat.items() if is_data_seed(key) and str(value).isdigit())
        seed = int(seed) if str(seed).lstrip("-").isdigit() else None
        return cls(
            where=str(directory),
            name=directory.name,
            seed=seed,
            git="",
            tags=tags,
            settings=settings,
            directory=directory,
            draw=draw,
        )

    @cached_property
    def sets(self) -> tuple[str, ...]:
        """Test sets of which there are predictions, as their files are called."""
        return tuple(sorted(file.stem for file in (self.directory / FOLDER).glob("*.parquet")))

    def predictions(self, test_set: str) -> Predictions | None:
        """Return scores and labels of a test set, or None where there are none."""
        return read(self.directory / FOLDER / f"{slug(test_set)}.parquet") if slug(test_set) in self.sets else None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its metrics, in the order in which they were logged first."""
        return tuple(self._metrics)

    def metric(self, key: str) -> pd.Series:
        """Return a metric by round; it is empty where the run has none of that name."""
        return self._metrics.get(key, pd.Series(dtype=float))

    @cached_property
    def _metrics(self) -> dict[str, pd.Series]:
        rows = pd.DataFrame(MetricsFile(self.directory / "metrics.csv").rows(), columns=["step", "key", "value"])
        return {str(key): group.set_index("step")["value"] for key, group in rows.groupby("key", sort=False)}
