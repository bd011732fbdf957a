"""The report of a reproduction, the module that makes it, and readers of the metrics of runs."""

from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result

OTHER_DATA = "These are the paper's data and runs: compare the order of rows and the gaps between them, not values."
"""Advice on reading published results, unless a report has its own."""


@dataclass(frozen=True)
class Report:
    """Text, tables and figures that are made from runs."""

    text: str  # Tables of our results, as Markdown.
    tables: dict[str, pd.DataFrame]  # Tables by file name, without its ending.
    figures: dict[str, Figure] = field(default_factory=dict)  # Figures by file name, without its ending.
    how_to_read: str = OTHER_DATA  # Advice on reading the published results, which are printed below ours.


@cache
def tables_of(folder: Path) -> ModuleType:
    """Import ``tables.py`` of a folder, given by its absolute path; without that file the module is empty."""
    file = folder / "tables.py"
    spec = spec_from_file_location(f"fedlit tables of {folder}", file)
    module = module_from_spec(spec)
    if file.is_file():
        spec.loader.exec_module(module)
    return module


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
