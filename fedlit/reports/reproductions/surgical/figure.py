"""The picture: AUROC of every class by method, shared and unique classes apart."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

STYLES = {"shared": ("o", "#1f5f8b"), "partly": ("s", "#7a7a7a"), "unique": ("^", "#c1572b")}


def draw(table: pd.DataFrame, kinds: Mapping[str, Sequence[str]]) -> Figure:
    """Args:
    table: method, class, auroc of one column.
    kinds: classes by how many sites label them.
    """
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
        ax.scatter(
            [means[m] for m in methods],
            np.arange(len(methods)) + offset,
            s=80,
            marker=marker,
            facecolors="none",
            edgecolors=colour,
            linewidths=1.6,
            label=f"{kind} classes ({len(classes)}), mean",
        )
    ax.set_yticks(range(len(methods)), methods)
    ax.invert_yaxis()
    ax.set_xlabel(f"test AUROC, {table['column'].iloc[0]}")
    ax.grid(alpha=0.25, axis="x")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize="small")
    return figure


def draw_dilution(curves: pd.DataFrame) -> Figure:
    """Args:
    curves: method, seed, round, auroc.
    """
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
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure
