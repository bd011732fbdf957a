"""The rule by which `fedlit tune` chooses settings: a validation metric, and the classes that it averages."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.metrics.auroc import slug
from fedlit.metrics.support import few
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import COUNT, TEST, better
from fedlit.tracking.run import VALIDATION_COUNTS, Result

VALIDATION = "val/auroc_macro"
"""Validation metric by which runs are compared and chosen, unless another one is named."""

FEWEST = 25
"""Smallest number of patients with positive validation images, and with negative ones, of a class that counts."""

LAST = 3
"""Number of evaluations whose mean counts with ``at: last``."""

OF_CLASS = "val/auroc/"
"""Prefix of the validation AUROC of single classes."""


@dataclass(frozen=True)
class Rule:
    """The rule by which settings are chosen.

    Args:
        metric: A metric of the validation data. ``val/auroc_macro`` is the mean over the classes with at least 25
            positive and 25 negative patients (images, if patients are unknown) in the validation data of every seed.
        seeds: Seeds of the tries, over which the metric is averaged; by default 100; none with ``by: seed``.
        mode: ``max`` or ``min``; ``auto`` maximises an AUROC and minimises a loss.
        at: ``best``, the round of each run's best model, or ``last``, the mean of its last three evaluations.
        by: ``method`` chooses one setting of each method, which then runs with the final seeds. With ``seed``, every
            try runs with the seeds of the plan, and each of them chooses its own setting by its own validation data;
            these tries are the final runs, so the differences between seeds contain the luck of the choice.
        experiment: Experiment of each method's tries, if they have their own: ``{experiment}`` is that of the plan,
            ``{case}`` the method. Tries then have names such as ``rate-0.1-momentum-0.9``, and plans with the same
            experiment share them.
        set: Keys of the tries in place of the grid, by which only the final runs differ.
    """

    metric: str = VALIDATION
    seeds: list[int] | None = None
    mode: Literal["auto", "max", "min"] = "auto"
    at: Literal["best", "last"] = "best"
    by: Literal["method", "seed"] = "method"
    experiment: str = ""
    set: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.metric.startswith(TEST):
            raise ConfigError(
                f"rule.metric: expected a metric of the validation data such as {VALIDATION}, found {self.metric}; a "
                "choice by the test set would make its AUROC too high"
            )
        if self.mode == "auto" and better(self.metric) is None:
            raise ConfigError(f"rule.mode: expected max or min for {self.metric}, found auto; set it")
        if self.by == "seed" and self.seeds is not None:
            raise ConfigError(
                f"rule.seeds: expected none with by: seed, as every try runs with the seeds of the plan, found "
                f"{self.seeds}; remove it"
            )

    @property
    def sign(self) -> int:
        """1 if the largest value wins, -1 if the smallest does."""
        return 1 if (better(self.metric) if self.mode == "auto" else self.mode) == "max" else -1

    @property
    def place(self) -> str:
        """The evaluations that count, in words."""
        return (
            "at the round of each run's best model"
            if self.at == "best"
            else f"in each run's last {LAST} evaluations (in all if there are fewer)"
        )

    def scores(self, runs: Sequence[Path], seeds: int) -> np.ndarray:
        """Return the scores of a method's tries, `[tries, 1]`, or `[tries, seeds]` if each seed chooses.

        The score of a failed run is NaN, and so is a mean over seeds of which one has failed.

        Args:
            runs: Run directories in the order of the tries and then of the seeds.
            seeds: Number of seeds of each try.
        """
        classes = self.evidence(runs).classes
        keys = {self.metric} if classes is None else {f"{OF_CLASS}{slug(name)}" for name in classes}
        values = [self._value(run, keys) for run in runs]
        scores = np.array(values).reshape(-1, seeds)
        return scores if self.by == "seed" else scores.mean(axis=1, keepdims=True)

    def choose(self, scores: np.ndarray) -> list[int]:
        """Return the try with the best score of each column of `scores`, which is not all NaN; the first in a tie."""
        return np.nanargmax(self.sign * scores, axis=0).tolist()

    def _value(self, directory: Path, keys: Collection[str]) -> float:
        if (result := Result.read(directory)) is None:
            return math.nan
        series: dict[str, dict[int, float]] = {key: {} for key in keys}
        for step, key, value in MetricsFile(directory / "metrics.csv").rows():
            if key in series:
                series[key][step] = value
        means = []
        for values in series.values():
            newest = list(values.values())[-LAST:] or [math.nan]
            means.append(fmean(newest) if self.at == "last" else values.get(result.best_round, newest[-1]))
        return fmean(means)

    def evidence(self, runs: Sequence[Path]) -> "Evidence":
        """Return the classes that count for a method, in the validation data of all its finished runs."""
        finished = [run for run in runs if Result.read(run)]
        counts = [counted for each in finished if (counted := _counts(each)) is not None]
        if self.metric != VALIDATION or not counts:
            return Evidence()
        # A class is in the mean only if it is defined in every run, and counts with the least that one of them has.
        table = pd.concat(counts).groupby("class", sort=False).min()
        defined = table[(table[["positives", "negatives"]] > 0).all(axis=1)]
        enough = (defined[["positives", "negatives"]] >= FEWEST).all(axis=1)
        rare = defined[~enough]
        if rare.empty:
            return Evidence()
        text = few(FEWEST, counts[0].attrs["units"], rare.itertuples(name=None))
        if not enough.any():
            return Evidence(
                note=f"warning: {text[0].lower()}{text[1:]}. No class has more, so all of them count in the choice."
            )
        return Evidence(tuple(defined.index[enough]), f"{text}. These classes do not count in the choice.")


@dataclass(frozen=True)
class Evidence:
    """Classes whose AUROC counts in the choice for a method."""

    classes: tuple[str, ...] | None = None  # None if all defined ones count.
    note: str = ""  # Sentences on the classes with too few patients, or "".


def _counts(run: Path) -> pd.DataFrame | None:
    """Return the positives and negatives of each class in a run's validation data, in patients if they are known."""
    file = run / VALIDATION_COUNTS
    table = pd.read_csv(file, keep_default_na=False, na_values=[""], dtype={"class": str}) if file.exists() else None
    if table is None or table.empty:  # as at sites: the images that the first evaluation has counted
        pairs: dict[str, dict[str, float]] = {}
        for _, key, value in MetricsFile(run / "metrics.csv").rows():
            if (match := COUNT.fullmatch(key)) and match["set"] == "val":
                pairs.setdefault(match["class"], {})[match["sign"]] = value
        rows = [(name, pair.get("pos"), pair.get("neg")) for name, pair in pairs.items()]
        table = pd.DataFrame(rows, columns=["class", "positives", "negatives"]) if rows else None
    elif table["positive_patients"].notna().all():
        table = table.assign(positives=table["positive_patients"], negatives=table["negative_patients"])
        return _with_units(table, "patients")
    return None if table is None else _with_units(table, "images")


def _with_units(table: pd.DataFrame, units: str) -> pd.DataFrame:
    counted = table[["class", "positives", "negatives"]].fillna(0).astype({"positives": int, "negatives": int})
    counted.attrs["units"] = units
    return counted
