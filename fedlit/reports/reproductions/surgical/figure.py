"""The figures: AUROC of every class by method, shared and unique classes separately; AUROC by round and by setting."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.reports.reproductions.report import light_axes

STYLES = {"shared": ("o", "#1f5f8b"), "partly": ("s", "#7a7a7a"), "unique": ("^", "#c1572b")}


def draw(table: pd.DataFrame, kinds: Mapping[str, Sequence[str]]) -> Figure:
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
