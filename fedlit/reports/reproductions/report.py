"""The report of a reproduction, and readers of the metrics of its runs."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result


@dataclass(frozen=True)
class Report:
    """Text, tables and figures that are made from runs."""

    text: str  # Tables of our results, as Markdown.
    tables: dict[str, pd.DataFrame]  # Tables by file name, without its ending.
    figures: dict[str, Figure] = field(default_factory=dict)  # Figures by file name, without its ending.


def measured(run: Path) -> dict[str, float]:
    """Return the metrics of a run's best model: on test sets, on validation data, and of clients in its round."""
    result = Result.read(run)
    rows = MetricsFile(run / "metrics.csv").rows()
    return {key: value for step, key, value in rows if step == result.best_round} | result.metrics


def curve(run: Path, metric: str) -> list[tuple[int, float]]:
    """Return the round and the value of each evaluation."""
    return [(step, value) for step, key, value in MetricsFile(run / "metrics.csv").rows() if key == metric]


def light_axes(axes: Axes, grid: str = "both") -> None:
    """Draw a faint grid, along one axis or both, and no spine at the top or right."""
    axes.grid(alpha=0.25, axis=grid)
    axes.spines[["top", "right"]].set_visible(False)
