"""The default report: means over seeds, with differences paired by seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.figures import draw_steps, draw_windows
from fedlit.reports.reproductions.places import Place
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, curve, measured

WINDOW = "federation.schedule.init_args.window"
CURVES = {"validation": "val/auroc_macro", "test": "test_curve/federation/auroc_macro"}
PICTURES: dict[str, Callable[[pd.DataFrame, str], Figure]] = {"windows": draw_windows, "steps": draw_steps}


@dataclass(frozen=True)
class SeedsReport:
    """A table of rows by columns."""

    row: str  # Row of a run, with its title and labels in braces.
    against: dict[str, Any]  # Labels of the row to compare with, as far as they differ.
    what: str  # Name of the metric, the first words below the table.
    versus: str  # Name of the reference, as text.
    column: str = ""  # Column of a run, with its labels in braces; or "" if every metric is a column.
    # Metrics of a run's best model by column, or the one metric of the table.
    metrics: str | dict[str, str] = "test/federation/auroc_macro"
    # Rounds as columns, with the test AUROC after each (``federation.test_curves``) instead of that of the best model.
    rounds: list[int] | None = None
    average: bool = False  # Whether a last column has the mean over the others.
    picture: Literal["", "windows", "steps"] = ""  # The figure, or "" for none.
    # Data of the figure's curves: ``validation``, or ``test`` with ``federation.test_curves``.
    curves: Literal["validation", "test"] = "validation"
    window: str = "window"  # Label whose values bring the number of local steps in a round, for the figure.
    # Largest loss compared with the smallest window of a harmless window, for I_max; None for no I_max.
    within: float | None = None

    def check_cases(self, scale: Scale, place: Place) -> None:
        """Check before training that rows, columns and figures can be made for all cases; errors name the place.

        Raises:
            ConfigError: A case lacks a label, or no case has the value of a label in ``against``.
        """
        of_picture = {"": [], "windows": ["method", self.window], "steps": ["method", "column", self.window]}
        needed = of_picture[self.picture] + ([] if self.within is None else ["method", self.window])
        of_cases: list[dict[str, Any]] = []
        for part in scale.parts.values():
            of_part = {"part": part.experiment, "title": part.title, "seed": 0}
            for name, labels in [(name, case.labels) for name, case in part.cases.items()] or [("", {})]:
                place.below("row").filled(self.row, of_part | {"case": name} | labels)
                place.below("column").filled(self.column, of_part | {"case": name} | labels)
                if missing := [label for label in needed if label not in labels]:
                    case = f"{part.experiment} {name}".rstrip()
                    raise place.error(f"its figure or I_max needs the label {missing[0]!r}, which {case} lacks; add it")
                of_cases.append(labels)
        for label, value in self.against.items():
            values = list(dict.fromkeys(labels[label] for labels in of_cases if label in labels))
            if value not in values:
                listed = ", ".join(map(str, values)) or "none"
                raise place.below("against", label).error(f"expected a value of the cases ({listed}), found {value!r}")

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the runs.

        Raises:
            ConfigError: Two runs with the same seed are in the same cell of the table.
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
                f"report.row: two runs with seed {seed} are both {row!r}, {column!r}; add the difference to "
                "the row, such as {title}"
            )
        figures = {}
        if self.picture:
            figures["figure"] = PICTURES[self.picture](self._drawn(runs, values, scale), self.curves)
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
        """Return the columns of a run with their values."""
        directory = run["directory"]
        if self.rounds is not None:
            key, values = "rounds", dict(curve(directory, CURVES["test"]))
            named = {f"{number} rounds": number for number in self.rounds}
        else:
            key, values = "metrics", measured(directory)
            named = {self.column.format(**run): self.metrics} if isinstance(self.metrics, str) else self.metrics
        if missing := [each for each in named.values() if each not in values]:
            hint = near(str(missing[0]), map(str, values)) or f"; expected {', '.join(map(str, values)) or 'none'}"
            raise ConfigError(f"report.{key}: {directory} has no {missing[0]!r}{hint}")
        return [(column, values[each]) for column, each in named.items()]

    def _largest(self, runs: pd.DataFrame, values: pd.DataFrame) -> pd.DataFrame:
        """Return I_max: title, method, window, harmful (the next window, at which more is lost).

        A window is harmless if it and all smaller ones lose at most ``within`` compared with the smallest, in the mean
        over seeds. A method without a run at the smallest window is compared with the other one there, because with
        I = 1 all methods are the same algorithm.
        """
        groups = runs.assign(auroc=list(values["auroc"])).groupby(["title", "method", self.window], sort=False)
        means = groups["auroc"].mean()
        largest = []
        for title, of_title in means.groupby("title", sort=False):
            smallest = min(of_title.index.get_level_values(self.window))
            for method, of_method in of_title.groupby("method", sort=False):
                by_window = of_method.droplevel(["title", "method"]).sort_index()
                start = by_window.get(smallest, of_title.xs(smallest, level=self.window).mean())
                lost = (window for window, auroc in by_window.items() if not start - auroc <= self.within)
                harmful = next(lost, None)
                harmless = [window for window in by_window.index if harmful is None or window < harmful]
                largest.append((title, method, max([smallest, *harmless]), harmful))
        return pd.DataFrame(largest, columns=["title", "method", "window", "harmful"]).astype({"harmful": "Int64"})

    def _largest_text(self, largest: pd.DataFrame) -> str:
        other = self.against["method"]
        others = largest[largest["method"] == other].set_index("title")["window"]
        rows = []
        for row in largest.itertuples():
            alone = row.method == other or row.title not in others
            ratio = "" if alone else f"{row.window / others[row.title]:g}"
            harmful = "no window that was run" if pd.isna(row.harmful) else str(row.harmful)
            rows.append([row.title, row.method, str(row.window), ratio, harmful])
        said = (
            f"I_max is the largest window that, like all smaller ones, loses at most {self.within:g} compared with the "
            "smallest window of the same federation, in the mean over seeds. The paper names no threshold for it "
            '("does not degenerate too much"), and does not have the last column.'
        )
        head = ["federation", "method", "I_max", f"ratio to {other}", "more is lost at"]
        return "\n".join([*grid(head, rows), "", said, ""])

    def _drawn(self, runs: pd.DataFrame, values: pd.DataFrame, scale: Scale) -> pd.DataFrame:
        """Return the runs with the values of figures: their AUROC, and their curve of (local step, AUROC)."""
        windows = [scale.keys(self.window, value)[WINDOW] for value in runs[self.window]]
        pairs = zip(runs["directory"], windows, strict=True)
        curves = [[(step * window, value) for step, value in curve(run, CURVES[self.curves])] for run, window in pairs]
        return runs.assign(auroc=list(values["auroc"]), window=runs[self.window], curve=curves)
