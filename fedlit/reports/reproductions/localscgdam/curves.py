"""The figure: AUC by local step, one panel per federation and column, as in the paper's Figures 1 to 4."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.reports.compare.styles import styles
from fedlit.reports.reproductions.report import light_axes

STYLES = {
    "LocalSCGDAM": ("#1f5f8b", "-", "o"),
    "CoDA": ("#c1572b", "--", "s"),
    "LocalSGDAM": ("#3d8f5f", "-.", "^"),
    "LocalSGDM": ("#7a5195", ":", "D"),
    "LocalSGDM_RL": ("#8c8c8c", (0, (5, 1)), "v"),
    "SCAFFOLD": ("#c1572b", "--", "s"),
    "FedProx": ("#7a5195", ":", "D"),
}
"""Colour, line and marker of a method; colour is never the only cue."""


def draw_steps(runs: pd.DataFrame, curves_of: str = "validation") -> Figure:
    """Draw runs: title of its federation, column, method, seed, curve of (local step, AUROC of these images)."""
    others = styles([method for method in dict.fromkeys(runs["method"]) if method not in STYLES])
    looks = STYLES | {method: (style.colour, style.line, style.marker) for method, style in others.items()}
    panels = list(runs.groupby(["title", "column"], sort=False))
    across = runs["column"].nunique()
    down = -(-len(panels) // across)
    figure = Figure(figsize=(3.6 * across, 3.2 * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey="row")
    for ax, ((title, column), of_panel) in zip(axes.flat, panels, strict=False):
        for method, of_method in of_panel.groupby("method", sort=False):
            colour, line, marker = looks[method]
            curves = [dict(curve) for curve in of_method["curve"]]
            steps = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = np.array([[curve[step] for step in steps] for curve in curves])
            mean, spread = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0.0
            ax.plot(steps, mean, color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.4, label=method)
            ax.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
        ax.set(title=f"{title}, {column}", xlabel="local steps", ylabel=f"{curves_of} AUROC")
        light_axes(ax)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    return figure
