"""The usual report: means over seeds, with differences that are paired by seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.fdam.figure import draw as draw_windows
from fedlit.reports.reproductions.localscgdam.curves import draw as draw_steps
from fedlit.reports.reproductions.report import Report, curve, measured

WINDOW, CURVE = "federation.schedule.init_args.window", "val/auroc_macro"
PICTURES: dict[str, Callable[[pd.DataFrame], Figure]] = {"windows": draw_windows, "steps": draw_steps}


@dataclass(frozen=True)
class SeedsReport:
    """A table of rows by columns."""

    row: str  # Row of a run, with its title and labels in braces.
    against: dict[str, Any]  # Labels of the row that a row is compared with, where they differ from its own.
    what: str  # What is measured, the first words below the table.
    versus: str  # What rows are compared with, in words.
    column: str = ""  # Column of a run, with its labels in braces; or "" where every metric is a column.
    # Metrics of a run's best model by column, or the one metric of the table.
    metrics: str | dict[str, str] = "test/federation/auroc_macro"
    average: bool = False  # Whether a last column has the mean over the others.
    picture: str = ""  # ``windows`` or ``steps``, or "" for none.
    window: str = "window"  # Label whose values bring the number of local steps in a round, for the picture.

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the runs."""
        values, against = [], {}
        for run in runs.to_dict("records"):
            row, found = self.row.format(**run), measured(run["directory"])
            against[row] = self.row.format(**run | self.against)
            named = {self.column.format(**run): self.metrics} if isinstance(self.metrics, str) else self.metrics
            values += [(row, column, run["seed"], found[metric]) for column, metric in named.items()]
        values = pd.DataFrame(values, columns=["row", "column", "seed", "auroc"])
        figures = {"figure": PICTURES[self.picture](self._drawn(runs, values, scale))} if self.picture else {}
        if self.average:
            means = values.groupby(["row", "seed"], sort=False)["auroc"].agg(lambda each: each.mean(skipna=False))
            values = pd.concat([values, means.reset_index().assign(column="average")], ignore_index=True)
        table = compare(values, {row: other for row, other in against.items() if row != other})
        return Report(markdown(table, self.what, self.versus), {"values": values, "table": table}, figures)

    def _drawn(self, runs: pd.DataFrame, values: pd.DataFrame, scale: Scale) -> pd.DataFrame:
        """Return the runs with what pictures show: their AUROC, and their curve of (local step, validation AUROC)."""
        windows = [scale.keys(self.window, value)[WINDOW] for value in runs[self.window]]
        pairs = zip(runs["directory"], windows, strict=True)
        curves = [[(step * window, value) for step, value in curve(run, CURVE)] for run, window in pairs]
        return runs.assign(auroc=list(values["auroc"]), curve=curves)
