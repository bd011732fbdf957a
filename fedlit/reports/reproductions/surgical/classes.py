"""The report of Tables 1 to 4: every method of the paper on sites with different label sets (section 5.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.data.schemes import by_sharing
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.report import Report, curve, light_axes, measured
from fedlit.reports.reproductions.surgical.tables import (
    Column,
    SurgicalMethod,
    dilution_markdown,
    markdown,
    reachable,
    values,
)

DILUTION = "surgical-dilution"
"""The part of heads on a fixed body.

If one of K sites labels a class, averaging gives the class 1/K of its update. AUROC does not change when a row is
rescaled, so this slows learning rather than biases it. The effect is clearest if only the head moves.
"""

STYLES = {"shared": ("o", "#1f5f8b"), "partly": ("s", "#7a7a7a"), "unique": ("^", "#c1572b")}


@dataclass(frozen=True)
class Shown:
    """A table."""

    title: str  # Title of the table.
    part: str  # Part whose runs it shows.
    text: str  # Description of the table.
    # Either ``sharing``, to show shared and unique classes separately, or ``site``, for each site's classes on the last
    # column's set; "" for the columns as they are.
    by: str = ""
    more: list[str] = field(default_factory=list)  # Rows, and beginnings of columns, that are not in the paper's table.


@dataclass(frozen=True)
class ClassesReport:
    """Tables of methods by test sets, each a mean over classes."""

    reference: str  # Method with which the others are compared; the last words of its row.
    sites: dict[str, list[str]]  # Sites, and the classes that each of them labels.
    columns: dict[str, Column] = field(metadata={"each": Column})  # Columns by title.
    rows: dict[str, SurgicalMethod] = field(metadata={"each": SurgicalMethod})  # Rows by title.
    tables: dict[str, Shown] = field(metadata={"each": Shown})  # Tables by title.
    ddof: int = 1  # Of standard deviations over classes: 1, that of a sample, or 0 as in the authors' released code.

    def make(self, runs: pd.DataFrame, scale: Scale) -> Report:
        """Make the report of the runs; a class's value is its mean over seeds."""
        texts, tables, figures = [], {}, {}
        for table in self.tables.values():
            classes = scale.parts[table.part].settings["data.classes"]
            rows, own = (row for row in self.rows.values() if row.part in ("", table.part)), runs["part"] == table.part
            methods = [replace(row, measured=_means(runs[own], row.cases)) for row in rows]
            shown = values(methods, self._columns(table.by), classes, self.sites)
            tables[table.title.lower().replace(" ", "-")] = shown
            texts.append(markdown(f"{table.title}. {table.text}", shown, self.reference, self.ddof))
            if table.more:
                texts.append(f"Not in the paper's table: {', '.join(table.more)}.\n")
            if set(classes) == {label for own in self.sites.values() for label in own}:
                every = values(methods, self._columns()[:1], classes, self.sites)
                figures["figure"] = draw_classes(every, by_sharing(self.sites))
        if DILUTION in scale.parts:
            curves = _curves(runs[runs["part"] == DILUTION])
            tables["dilution"], figures["dilution"] = curves, draw_dilution(curves)
            texts.append(dilution_markdown(curves))
        return Report("\n".join(texts), tables, figures)

    def _columns(self, by: str = "") -> list[Column]:
        columns = list(self.columns.values())
        if by == "sharing":
            return [
                replace(column, title=f"{column.title}, {kind} classes", classes=of_column)
                for column in columns
                for kind, classes in by_sharing(self.sites).items()
                if (of_column := reachable(column, classes, self.sites))
            ]
        if by == "site":
            (external,) = columns[-1].sets
            sites = self.sites.items()
            return [Column(f"{external}, {site} classes", [external], False, labels, [site]) for site, labels in sites]
        return columns


def _means(runs: pd.DataFrame, cases: list[str]) -> dict[str, dict[str, float]]:
    """Return the test AUROC of classes for each case, as means over seeds."""
    means = {}
    for case in cases:
        of_runs = [measured(run) for run in runs.loc[runs["case"] == case, "directory"]]
        keys = {key for metrics in of_runs for key in metrics if key.startswith("test/") and "/auroc/" in key}
        means[case] = {key: float(np.mean([m.get(key, np.nan) for m in of_runs])) for key in sorted(keys)}
    return means


def _curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Return validation AUROC over the unique classes after each round: method, seed, round, auroc."""
    return pd.DataFrame(
        {"method": run.method, "seed": run.seed, "round": step, "auroc": value}
        for run in runs.itertuples()
        for step, value in curve(run.directory, "val/auroc_unique")
    )


def draw_classes(table: pd.DataFrame, kinds: Mapping[str, Sequence[str]]) -> Figure:
    """Draw a table (method, class, auroc of one column), with classes by how many sites label them."""
    methods = list(dict.fromkeys(table["method"]))
    figure = Figure(figsize=(7.5, 0.42 * len(methods) + 1.4), layout="constrained")
    ax = figure.subplots()
    for offset, (kind, classes) in zip((-0.14, 0.0, 0.14), kinds.items(), strict=True):
        if not classes:
            continue
        marker, colour = STYLES[kind]
        of_kind = table[table["class"].isin(classes)]
        rows = np.array([methods.index(m) for m in of_kind["method"]])
        ax.scatter(of_kind["auroc"], rows + offset, s=16, marker=marker, color=colour, alpha=0.45, linewidths=0)
        means = of_kind.groupby("method")["auroc"].mean()
        hollow = {"s": 80, "marker": marker, "facecolors": "none", "edgecolors": colour, "linewidths": 1.6}
        label = f"{kind} classes ({len(classes)}), mean"
        ax.scatter([means[m] for m in methods], np.arange(len(methods)) + offset, label=label, **hollow)
    ax.set_yticks(range(len(methods)), methods)
    ax.invert_yaxis()
    ax.set_xlabel(f"test AUROC, {table['column'].iloc[0]}")
    light_axes(ax, "x")
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize="small")
    return figure


def draw_dilution(curves: pd.DataFrame) -> Figure:
    """Draw curves: method, seed, round, auroc."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    styles = (("--", "#7a7a7a"), ("-.", "#1f5f8b"), ("-", "#c1572b"))
    for (method, rows), (dashes, colour) in zip(curves.groupby("method", sort=False), styles, strict=False):
        by_round = rows.groupby("round")["auroc"]
        ax.plot(by_round.mean(), linestyle=dashes, color=colour, label=method)
        ax.fill_between(by_round.min().index, by_round.min(), by_round.max(), color=colour, alpha=0.15, linewidth=0)
    ax.set(xscale="log", xlabel="round", ylabel="validation AUROC, unique classes")
    ticks = [n for n in (2**k for k in range(20)) if n <= curves["round"].max()]
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.minorticks_off()
    light_axes(ax)
    ax.legend(frameon=False)
    return figure
