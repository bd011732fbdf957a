"""The figure: AUC by iteration above, AUC by window below, one column per federation."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlit.reports.compare.styles import styles
from fedlit.reports.reproductions.report import light_axes

LOOKS = {"CODA+": ("#c1572b", "s"), "CODASCA": ("#1f5f8b", "o")}
"""Colour and marker of the paper's methods."""

DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (1, 3))]


def draw_windows(runs: pd.DataFrame, curves_of: str = "validation") -> Figure:
    """Draw runs: title of its federation, method, window, seed, auroc, curve of (iteration, AUROC of these images)."""
    others = styles([method for method in dict.fromkeys(runs["method"]) if method not in LOOKS])
    looks = LOOKS | {method: (style.colour, style.marker) for method, style in others.items()}
    titles = list(dict.fromkeys(runs["title"]))
    figure = Figure(figsize=(4.6 * len(titles), 7.2), layout="constrained")
    axes = figure.subplots(2, len(titles), squeeze=False)
    for column, title in enumerate(titles):
        of_part = runs[runs["title"] == title]
        windows = sorted(of_part["window"].unique())
        above, below = axes[0][column], axes[1][column]
        for method, (colour, marker) in looks.items():
            of_method = of_part[of_part["method"] == method]
            if of_method.empty:
                continue
            for window, dashes in zip(windows, DASHES, strict=False):
                curves = [dict(curve) for curve in of_method.loc[of_method["window"] == window, "curve"]]
                if not curves:
                    continue
                steps = sorted(set.intersection(*(set(curve) for curve in curves)))
                mean = [np.mean([curve[step] for curve in curves]) for step in steps]
                above.plot(steps, mean, color=colour, linestyle=dashes, linewidth=1.4, label=f"{method}, I={window}")
            by_window = of_method.groupby("window")["auroc"]
            look = {"color": colour, "marker": marker, "capsize": 3}
            below.errorbar(by_window.mean().index, by_window.mean(), by_window.std(), label=method, **look)
        above.set(title=title, xlabel="iterations", ylabel=f"{curves_of} AUROC")
        below.set(xlabel="communication window I", ylabel="test AUROC", xscale="log")
        below.set_xticks(windows, [str(window) for window in windows])
        below.minorticks_off()
        below.legend(frameon=False)
        above.legend(frameon=False, fontsize="x-small")
        for ax in (above, below):
            light_axes(ax)
    return figure
