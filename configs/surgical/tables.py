"""The reports of surgical aggregation: Tables 1 to 4, and Figures 5 to 7.

Tables are of methods by test sets, each cell a mean over classes (section 5.2). Figures 5 to 7 are of IID clients by
number of clients and of shared classes (section 4.2.1): all federated methods have FedBN+ and the same budget, the
model of all labels, one run, is the one that they try to approach, and methods are compared by paired t-tests over the
settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.data.schemes import by_sharing
from fedlit.metrics.auroc import slug
from fedlit.metrics.paired import p_text, paired
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, curve, light_axes, measured

DILUTION = "surgical-dilution"
"""The part of heads on a fixed body.

If one of K sites labels a class, averaging gives the class 1/K of its update. AUROC does not change when a row is
rescaled, so this slows learning rather than biases it. The effect is clearest if only the head moves.
"""

STYLES = {"shared": ("o", "#1f5f8b"), "partly": ("s", "#7a7a7a"), "unique": ("^", "#c1572b")}


@dataclass(frozen=True)
class SurgicalMethod:
    """A row."""

    title: str  # Name of the row.
    cases: Sequence[str]  # Names of the cases behind it: one, or one for each site.
    # Whether each site has its own model; then only the site's images and classes are scored.
    personal: bool = False
    # Test metrics of each case, means over seeds.
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    part: str = ""  # Part of the cases; "" for every part.

    def auroc(self, test_set: str, label: str, site: str = "") -> float:
        """Return the AUROC of a class on a test set, by the model of a site if named; NaN if it was not learned."""
        alone = f"individual-{slug(site or test_set)}"
        case, by = (alone, "") if alone in self.cases else (self.cases[0], f" by {site}" if site else "")
        return self.measured[case].get(f"test/{slug(test_set + by)}/auroc/{slug(label)}", np.nan)


@dataclass(frozen=True)
class Column:
    """A column: for each class, the mean over test sets."""

    title: str  # Name of the column.
    sets: Sequence[str]  # Names of the test sets.
    own: bool = False  # Whether only the classes that a set's site labels count.
    classes: Sequence[str] | None = None  # Classes of the column; by default all of the table.
    # Sites whose models score an external set if there is no common model; by default every site.
    models: Sequence[str] | None = None

    def value(self, method: SurgicalMethod, label: str, sites: Mapping[str, Sequence[str]]) -> float:
        """Return the AUROC of a class; NaN if it is undefined on one of the sets."""
        sets = [name for name in self.sets if not self.own or label in sites[name]]
        models = (self.models or sites) if method.personal and not self.own else [""]
        aurocs = [np.mean([method.auroc(name, label, site) for site in models]) for name in sets]
        return float(np.mean(aurocs)) if aurocs else np.nan


def values(
    methods: Sequence[SurgicalMethod],
    columns: Sequence[Column],
    classes: Sequence[str],
    sites: Mapping[str, Sequence[str]],
) -> pd.DataFrame:
    """Return the AUROC of each method, column and class."""
    return pd.DataFrame(
        {"method": m.title, "column": c.title, "class": label, "auroc": c.value(m, label, sites)}
        for m in methods
        for c in columns
        for label in (c.classes or reachable(c, classes, sites))
    )


def markdown(title: str, table: pd.DataFrame, reference: str, ddof: int = 1) -> str:
    """Return mean ± SD over classes, with the paired t-test against a reference and the difference to it.

    As in the paper, a mean is undefined ("-") if one of its classes is.
    """
    columns = list(dict.fromkeys(table["column"]))
    shown, odd = [], []
    reference = next(m for m in table["method"] if m.endswith(reference))
    for method, rows in table.groupby("method", sort=False):
        cells = []
        for column in columns:
            mine = rows.loc[rows["column"] == column, "auroc"].to_numpy()
            best = table.loc[(table["method"] == reference) & (table["column"] == column), "auroc"].to_numpy()
            if np.isnan(mine).any():
                cells.append("-")
                continue
            cell = f"{mine.mean():.3f} ± {mine.std(ddof=ddof):.3f}"
            if method != reference:
                test = paired(best, mine)
                cell += f" ({-test.difference:+.3f}, p {p_text(test.p)})"
                if not test.normal:
                    odd.append(f"{method}, {column}")
            cells.append(cell)
        shown.append([method, *cells])
    counts = table.groupby("column", sort=False)["class"].nunique()
    lines = [
        f"**{title}**",
        "",
        *grid(["method", *columns], shown),
        "",
        f"AUROC, mean ± standard deviation{f', ddof {ddof},' if ddof != 1 else ''} over classes "
        f"({', '.join(f'{column}: {number}' for column, number in counts.items())}). In brackets are the difference to "
        f"{reference} and p of its paired t-test over classes, the paper's own analysis. Classes share images and "
        "trainings, so p is too small to be evidence, and has no stars.",
    ]
    if odd:
        lines.append(f"Shapiro-Wilk p < 0.05, so the t-test does not hold there: {'; '.join(odd)}.")
    return "\n".join([*lines, ""])


def dilution_markdown(curves: pd.DataFrame) -> str:
    """Return AUROC of unique classes after 1, 2, 4, ... rounds, with differences to surgical heads."""
    rounds = [n for n in (2**k for k in range(20)) if n <= curves["round"].max()]
    by_round = curves.pivot_table(index=["method", "seed"], columns="round", values="auroc")[rounds]
    shown = []
    best = by_round.loc["SurgAgg"]
    for method in dict.fromkeys(curves["method"]):
        mine = by_round.loc[method]
        behind = mine - best
        gaps = [f" ({behind[n].mean():+.3f} ± {behind[n].std():.3f})" * (method != "SurgAgg") for n in rounds]
        shown.append([method, *(f"{mine[n].mean():.3f}{gap}" for n, gap in zip(rounds, gaps, strict=True))])
    seeds = len(best)
    lines = [
        "**Dilution: heads on a fixed body, unique classes**",
        "",
        *grid(["method", *(f"{n} rounds" for n in rounds)], shown),
        "",
        f"Validation AUROC, mean over {seeds} seeds; in brackets is the difference to surgical heads with the same "
        "seed, mean ± standard deviation. One of the sites labels each of these classes.",
        "",
    ]
    return "\n".join(lines)


def reachable(column: Column, classes: Sequence[str], sites: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the possible classes of a column; for an ``own`` column, those that one of its sites labels."""
    if not column.own:
        return list(classes)
    return [label for label in classes if any(label in sites[name] for name in column.sets)]


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
class Classes:
    """Tables of methods by test sets, each a mean over classes."""

    reference: str  # Method with which the others are compared; the last words of its row.
    sites: dict[str, list[str]]  # Sites, and the classes that each of them labels.
    columns: dict[str, Column] = field(metadata={"each": Column})  # Columns by title.
    rows: dict[str, SurgicalMethod] = field(metadata={"each": SurgicalMethod})  # Rows by title.
    tables: dict[str, Shown] = field(metadata={"each": Shown})  # Tables by title.
    ddof: int = 1  # Of standard deviations over classes: 1, that of a sample, or 0 as in the authors' released code.

    def make(self, runs: pd.DataFrame, scale: Any) -> Report:
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


@dataclass(frozen=True)
class Settings:
    """Tables of methods by settings, of which one label varies."""

    sets: dict[str, str]  # Test sets by their names in tables.
    axes: dict[str, str]  # Labels that vary, and the names of what they count.
    usual: dict[str, int | str]  # Values of the labels while another one varies.
    reference: str  # Method with which the others are compared.
    everything: str  # Method of all labels, which has one run for all settings.

    def make(self, runs: pd.DataFrame, scale: Any) -> Report:
        """Make the report of the runs; a setting's value is its mean over seeds."""
        aurocs = pd.DataFrame(
            {label: run[label] for label in (*self.usual, "method")}
            | {"set": title, "auroc": metrics[f"test/{slug(name)}/auroc_macro"]}
            for run in runs.to_dict("records")
            for metrics in [measured(run["directory"])]
            for title, name in self.sets.items()
        )
        values = aurocs.groupby([c for c in aurocs if c != "auroc"], sort=False, as_index=False)["auroc"].mean()
        curves = pd.concat([self._along(axis, values) for axis in self.axes], ignore_index=True)
        texts = [self._markdown(curves, axis, title) for axis in self.axes for title in self.sets]
        return Report("\n".join(texts), {"values": values}, {"figure": draw_simulation(curves, self.axes)})

    def _along(self, axis: str, values: pd.DataFrame) -> pd.DataFrame:
        """Return the settings of an axis and the model of all labels, with the number that varies."""
        (other,) = self.usual.keys() - {axis}
        chosen = values[(values[other] == self.usual[other]) & (values["method"] != self.everything)]
        shown = pd.concat([chosen, values[values["method"] == self.everything]])
        return shown.assign(axis=axis, number=shown[axis])[["axis", "number", "method", "set", "auroc"]]

    def _markdown(self, values: pd.DataFrame, axis: str, test_set: str) -> str:
        """Return a row for each method and a column for each setting, and the mean with its paired test."""
        chosen = values[(values["axis"] == axis) & (values["set"] == test_set)]
        everything = chosen.loc[chosen["method"] == self.everything, "auroc"].item()
        chosen = chosen[chosen["method"] != self.everything]
        rows = chosen.pivot(index="method", columns="number", values="auroc").loc[list(dict.fromkeys(chosen["method"]))]
        shown, odd = [], []
        for method, mine in rows.iterrows():
            mean = f"{mine.mean():.3f} ± {mine.std():.3f}"
            if method != self.reference:
                test = paired(rows.loc[self.reference], mine)
                mean += f" ({-test.difference:+.3f}, p {p_text(test.p)})"
                odd += [] if test.normal else [method]
            shown.append([method, *(f"{value:.3f}" for value in mine), mean, f"{everything - mine.mean():.3f}"])
        lines = [
            f"**{test_set}, by number of {self.axes[axis]}**",
            "",
            *grid(["method", *map(str, rows.columns), "mean", "below all labels by"], shown),
            "",
            f"Mean test AUROC over classes; its mean ± standard deviation over the {rows.shape[1]} settings. "
            f"In brackets are the difference to {self.reference} and p of its paired t-test over settings. "
            "Settings share images, so p is too small to be evidence, and has no stars. "
            f"The model of all labels has {everything:.3f}.",
        ]
        if odd:
            lines.append(f"Shapiro-Wilk p < 0.05, so the t-test does not hold for {', '.join(odd)}.")
        return "\n".join([*lines, ""])


def draw_simulation(values: pd.DataFrame, axes: Mapping[str, str]) -> Figure:
    """Draw values (axis, number, method, set, auroc) in a row of panels for each axis and a column for each test set.

    The last method, the model of all labels, is a line.
    """
    rows, sets, methods = (list(dict.fromkeys(values[column])) for column in ("axis", "set", "method"))
    figure = Figure(figsize=(3.8 * len(sets), 2.9 * len(rows) + 0.5), layout="constrained")
    panels = figure.subplots(len(rows), len(sets), squeeze=False, sharey="col")
    styles = ((":", "D", "#8c8c8c"), ("--", "s", "#7a5195"), ("-.", "^", "#1f5f8b"), ("-", "o", "#c1572b"))
    for (axis, test_set), points in values.groupby(["axis", "set"], sort=False):
        ax = panels[rows.index(axis)][sets.index(test_set)]
        for method, (dashes, marker, colour) in zip(methods[:-1], styles, strict=True):
            mine = points[points["method"] == method].sort_values("number")
            ax.plot(mine["number"], mine["auroc"], linestyle=dashes, marker=marker, color=colour, label=method)
        level = points.loc[points["method"] == methods[-1], "auroc"].item()
        ax.axhline(level, color="black", linewidth=0.9, linestyle=(0, (1, 3)), label=methods[-1])
        ax.set(title=test_set, xlabel=f"number of {axes[axis]}", ylabel="test AUROC, mean over classes")
        ax.set_xticks(sorted(points.loc[points["method"] != methods[-1], "number"].unique()))
        light_axes(ax)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    return figure
