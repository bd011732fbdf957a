"""The usual report: means over seeds, with differences that are paired by seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedlit.core.errors import ConfigError
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.fdam.figure import draw as draw_windows
from fedlit.reports.reproductions.localscgdam.curves import draw as draw_steps
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, curve, measured

WINDOW = "federation.schedule.init_args.window"
CURVES = {"validation": "val/auroc_macro", "test": "test_curve/federation/auroc_macro"}
PICTURES: dict[str, Callable[[pd.DataFrame, str], Figure]] = {"windows": draw_windows, "steps": draw_steps}


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
    # Rounds that are the columns, with the test AUROC after each (``federation.test_curves``), in place of the best model's.
    rounds: list[int] | None = None
    average: bool = False  # Whether a last column has the mean over the others.
    picture: str = ""  # ``windows`` or ``steps``, or "" for none.
    curves: str = (
        "validation"  # Images of the picture's curves, ``validation``, or ``test`` with ``federation.test_curves``.
    )
    window: str = "window"  # Label whose values bring the number of local steps in a round, for the picture.
    # Largest loss against the smallest window at which a window still counts as harmless, for I_max; None for no I_max.
    within: float | None = None

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the runs.

        Raises:
            ConfigError: Two runs with one seed are in one cell of the table.
        """
        values, against = [], {}
        for run in runs.to_dict("records"):
            row = self.row.format(**run)
            against[row] = self.row.format(**run | self.against)
            values += [(row, column, run["seed"], auroc) for column, auroc in self._columns(run)]
        values = pd.DataFrame(values, columns=["row", "column", "seed", "auroc"])
        twice = values[values.duplicated(["row", "column", "seed"])]
        if len(twice):
            row, column, seed, _ = twice.iloc[0]
            raise ConfigError(
                f"report.row: two runs with seed {seed} are both {row!r}, {column!r}; let the row name what they differ in, "
                "such as {title}"
            )
        figures = (
            {"figure": PICTURES[self.picture](self._drawn(runs, values, scale), self.curves)} if self.picture else {}
        )
        if self.average:
            means = values.groupby(["row", "seed"], sort=False)["auroc"].agg(lambda each: each.mean(skipna=False))
            values = pd.concat([values, means.reset_index().assign(column="average")], ignore_index=True)
        table = compare(values, {row: other for row, other in against.items() if row != other})
        text, tables = markdown(table, self.what, self.versus), {"values": values, "table": table}
        if self.within is not None:
            tables["largest-windows"] = largest = self._largest(runs, values)
            text = f"{text}\n{self._largest_text(largest)}"
        return Report(text, tables, figures)

    def _columns(self, run: dict[str, Any]) -> list[tuple[str, float]]:
        """Return the columns of a run with what was measured."""
        if self.rounds is not None:
            after = dict(curve(run["directory"], CURVES["test"]))
            return [(f"{number} rounds", after[number]) for number in self.rounds]
        found = measured(run["directory"])
        named = {self.column.format(**run): self.metrics} if isinstance(self.metrics, str) else self.metrics
        return [(column, found[metric]) for column, metric in named.items()]

    def _largest(self, runs: pd.DataFrame, values: pd.DataFrame) -> pd.DataFrame:
        """Return I_max: title, method, window, harmful (the next window, at which more is lost).

        A window is harmless where it and all smaller ones lose no more than ``within`` against the smallest, in the mean
        over seeds. A method that was not run at the smallest window is compared with the other one there, as with I = 1 all
        are one algorithm.
        """
        means = (
            runs.assign(auroc=list(values["auroc"]))
            .groupby(["title", "method", self.window], sort=False)["auroc"]
            .mean()
        )
        found = []
        for title, of_title in means.groupby("title", sort=False):
            smallest = min(of_title.index.get_level_values(self.window))
            for method in dict.fromkeys(of_title.index.get_level_values("method")):
                own = of_title.loc[title, method].sort_index()
                start = own.get(smallest, of_title.xs(smallest, level=self.window).mean())
                harmful = next((window for window, auroc in own.items() if not start - auroc <= self.within), None)
                harmless = [window for window in own.index if harmful is None or window < harmful]
                found.append((title, method, max([smallest, *harmless]), harmful))
        return pd.DataFrame(found, columns=["title", "method", "window", "harmful"]).astype({"harmful": "Int64"})

    def _largest_text(self, largest: pd.DataFrame) -> str:
        other = self.against["method"]
        others = largest[largest["method"] == other].set_index("title")["window"]
        rows = [
            [
                row.title,
                row.method,
                str(row.window),
                "" if row.method == other or row.title not in others else f"{row.window / others[row.title]:g}",
                "none that was run" if pd.isna(row.harmful) else str(row.harmful),
            ]
            for row in largest.itertuples()
        ]
        said = (
            f"I_max is the largest window that, with all smaller ones, loses at most {self.within:g} against the smallest window "
            'of the same federation, in the mean over seeds. The paper names no number for it ("does not degenerate too much"), and '
            "has not the last column."
        )
        return "\n".join(
            [*grid(["federation", "method", "I_max", f"ratio to {other}", "more is lost at"], rows), "", said, ""]
        )

    def _drawn(self, runs: pd.DataFrame, values: pd.DataFrame, scale: Scale) -> pd.DataFrame:
        """Return the runs with what pictures show: their AUROC, and their curve of (local step, AUROC)."""
        windows = [scale.keys(self.window, value)[WINDOW] for value in runs[self.window]]
        pairs = zip(runs["directory"], windows, strict=True)
        curves = [[(step * window, value) for step, value in curve(run, CURVES[self.curves])] for run, window in pairs]
        return runs.assign(auroc=list(values["auroc"]), curve=curves)
