"""The picture: AUC against iterations above, AUC against the window below, a column a federation."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

COLOURS = {"codaplus": "#c1572b", "codasca": "#1f5f8b"}
NAMES = {"codaplus": "CODA+", "codasca": "CODASCA"}
DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (1, 3))]


def draw(runs: pd.DataFrame, titles: dict[str, str]) -> Figure:
    """Args:
    runs: one row a run: part, arm, window, seed, test_auroc, curve of (iteration, validation AUROC).
    titles: of the parts, in order.
    """
    figure = Figure(figsize=(4.6 * len(titles), 7.2), layout="constrained")
    axes = figure.subplots(2, len(titles), squeeze=False)
    for column, (part, title) in enumerate(titles.items()):
        of_part = runs[runs["part"] == part]
        windows = sorted(of_part["window"].unique())
        above, below = axes[0][column], axes[1][column]
        for arm, colour in COLOURS.items():
            of_arm = of_part[of_part["arm"] == arm]
            for window, dashes in zip(windows, DASHES, strict=False):
                curves = [dict(curve) for curve in of_arm.loc[of_arm["window"] == window, "curve"]]
                steps = sorted(set.intersection(*(set(curve) for curve in curves)))
                mean = [np.mean([curve[step] for curve in curves]) for step in steps]
                above.plot(
                    steps, mean, color=colour, linestyle=dashes, linewidth=1.4, label=f"{NAMES[arm]}, I={window}"
                )
            by_window = of_arm.groupby("window")["test_auroc"]
            below.errorbar(
                windows, by_window.mean(), by_window.std(), color=colour, marker="o", capsize=3, label=NAMES[arm]
            )
        above.set(title=title, xlabel="iterations", ylabel="validation AUROC")
        below.set(xlabel="communication window I", ylabel="test AUROC", xscale="log")
        below.set_xticks(windows, [str(window) for window in windows])
        below.minorticks_off()
        below.legend(frameon=False)
        above.legend(frameon=False, fontsize="x-small")
        for ax in (above, below):
            ax.grid(alpha=0.25)
            ax.spines[["top", "right"]].set_visible(False)
    return figure
