"""Figures of the default report: AUC by communication window, and AUC by local step."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.reports.compare.styles import Style, styles
from fedlit.reports.reproductions.report import light_axes

STYLES = {
    "CODA+": Style("#c1572b", "--", "s"),
    "CODASCA": Style("#1f5f8b", "-", "o"),
    "LocalSCGDAM": Style("#1f5f8b", "-", "o"),
    "CoDA": Style("#c1572b", "--", "s"),
    "LocalSGDAM": Style("#3d8f5f", "-.", "^"),
    "LocalSGDM": Style("#7a5195", ":", "D"),
    "LocalSGDM_RL": Style("#8c8c8c", (0, (5, 1)), "v"),
    "SCAFFOLD": Style("#c1572b", "--", "s"),
    "FedProx": Style("#7a5195", ":", "D"),
}
"""Looks of the papers' methods, alike for methods of different papers; colour is never the only cue."""

DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (1, 3))]


def draw_windows(runs: pd.DataFrame, curves_of: str = "validation") -> Figure:
    """Draw AUC by iteration, by megabytes that clients send, and by window, one column per federation.

    Runs have the title of their federation, method, window, seed, auroc, curve of (iteration, AUROC of these images),
    sent (megabytes of all clients until each point of the curve).
    """
    looks, titles = _looks(runs), list(dict.fromkeys(runs["title"]))
    figure = Figure(figsize=(4.6 * len(titles), 10.8), layout="constrained")
    axes = figure.subplots(3, len(titles), squeeze=False)
    for column, title in enumerate(titles):
        of_part = runs[runs["title"] == title]
        windows = sorted(of_part["window"].unique())
        above, middle, below = axes[:, column]
        for method, of_method in of_part.groupby("method", sort=False):
            colour, marker = looks[method].colour, looks[method].marker
            for window, of_window in of_method.groupby("window"):
                steps, values = _common(of_window["curve"])
                dashes = DASHES[windows.index(window) % len(DASHES)]
                look = {"color": colour, "linestyle": dashes, "linewidth": 1.4, "label": f"{method}, I={window}"}
                above.plot(steps, values.mean(0), **look)
                middle.plot(of_window["sent"].iloc[0][: len(steps)], values.mean(0), **look)
            by_window = of_method.groupby("window")["auroc"]
            look = {"color": colour, "marker": marker, "capsize": 3}
            below.errorbar(by_window.mean().index, by_window.mean(), by_window.std(), label=method, **look)
        above.set(title=title, xlabel="iterations", ylabel=f"{curves_of} AUROC")
        middle.set(xlabel="MB sent by all clients", ylabel=f"{curves_of} AUROC", xscale="log")
        below.set(xlabel="communication window I", ylabel="test AUROC", xscale="log")
        below.set_xticks(windows, [str(window) for window in windows])
        below.minorticks_off()
        below.legend(frameon=False)
        above.legend(frameon=False, fontsize="x-small")
        for ax in (above, middle, below):
            light_axes(ax)
    return figure


def draw_steps(runs: pd.DataFrame, curves_of: str = "validation") -> Figure:
    """Draw AUC by local step, one panel per federation and column.

    Runs have the title of their federation, column, method, seed, curve of (local step, AUROC of these images).
    """
    looks, panels = _looks(runs), list(runs.groupby(["title", "column"], sort=False))
    across = runs["column"].nunique()
    down = -(-len(panels) // across)
    figure = Figure(figsize=(3.6 * across, 3.2 * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey="row")
    for ax, ((title, column), of_panel) in zip(axes.flat, panels, strict=False):
        for method, of_method in of_panel.groupby("method", sort=False):
            look, (steps, values) = looks[method], _common(of_method["curve"])
            mean, spread = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0.0
            options = {"linestyle": look.line, "marker": look.marker, "markersize": 4, "linewidth": 1.4}
            ax.plot(steps, mean, color=look.colour, label=method, **options)
            ax.fill_between(steps, mean - spread, mean + spread, color=look.colour, alpha=0.12, linewidth=0)
        ax.set(title=f"{title}, {column}", xlabel="local steps", ylabel=f"{curves_of} AUROC")
        light_axes(ax)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    return figure


def _looks(runs: pd.DataFrame) -> dict[str, Style]:
    """Return the looks of the methods: all different, also if two papers give two of them the same."""
    methods = list(dict.fromkeys(runs["method"]))
    known = {method: STYLES[method] for method in methods if method in STYLES}
    if len(set(known.values())) < len(known):
        return styles(methods)
    return known | styles([method for method in methods if method not in known])


def _common(curves: pd.Series) -> tuple[list[int], np.ndarray]:
    curves = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return steps, np.array([[curve[step] for step in steps] for curve in curves])
