"""Curves of metrics against local steps or communicated bytes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import AutoMinorLocator, EngFormatter, MaxNLocator

from fedlit.reports.compare.styles import Style, method_figure, tidy
from fedlit.tracking.figures import INK

MOST_POINTS = 400
HEIGHT = 3.0
Curves = Mapping[str, Sequence[pd.Series]]


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve and its spread."""

    x: np.ndarray  # `[G]` float64, rising.
    mean: np.ndarray  # `[G]` values.
    low: np.ndarray  # `[G]` lower edge; NaN without a spread.
    high: np.ndarray  # `[G]` upper edge.


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper edge of the band over seeds, `[G]` each, from values `[S, G]`.

    For three seeds or more, the band is the mean ± one standard deviation (n - 1). For two seeds, whose standard
    deviation is too uncertain, the edges are their values. One seed has no band (NaN).
    """
    if len(values) < 2:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    if len(values) == 2:
        return values.min(0), values.max(0)
    mean, deviation = values.mean(0), values.std(0, ddof=1)
    return mean - deviation, mean + deviation


def band_note(curves: Curves) -> str:
    """Return a sentence for the caption about lines and bands."""
    most = max((sum(len(_finite(one)) > 0 for one in series) for series in curves.values()), default=0)
    if most < 2:
        return "One seed per method."
    if most == 2:
        return "Lines are means over seeds; bands lie between two seeds."
    return "Lines are means over seeds; bands are ± one standard deviation, or the range of two seeds."


def average(series: Sequence[pd.Series]) -> tuple[Band | None, list[pd.Series]]:
    """Return the mean curve over the x that all seeds reach, and the rest of each longer seed.

    The index of each seed is its x. Seeds are interpolated linearly on the union of their x. Values that are not finite
    are left out.
    """
    seeds = [finite for one in series if len(finite := _finite(one))]
    if not seeds:
        return None, []
    start, stop = max(one.index[0] for one in seeds), min(one.index[-1] for one in seeds)
    grid = np.unique(np.concatenate([one.index.to_numpy() for one in seeds]))
    grid = grid[(grid >= start) & (grid <= stop)]
    if not len(grid):
        return None, seeds
    if len(grid) > MOST_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)]
    values = np.stack([np.interp(grid, one.index, one.to_numpy()) for one in seeds])
    tails = [one[one.index >= stop] for one in seeds if one.index[-1] > stop]
    return Band(grid, values.mean(0), *spread(values)), tails


def curves_figure(
    curves: Curves, x_label: str, y_label: str, styles: Mapping[str, Style], *, in_bytes: bool = False
) -> Figure:
    """Draw each method's mean over seeds with its band (see `spread` and `band_note`).

    A method's mean ends with its shortest seed; longer seeds continue as thin lines. The legend marks methods without
    values. Bytes are shown in kB, MB, GB or TB.
    """
    averaged = {method: average(series) for method, series in curves.items()}
    labels = {method: method if any(drawn) else f"{method} (none)" for method, drawn in averaged.items()}
    figure = method_figure({labels[method]: styles[method] for method in averaged}, HEIGHT)
    axes = figure.subplots()
    for number, (method, (band, tails)) in enumerate(averaged.items()):
        style = styles[method]
        for tail in tails:
            axes.plot(tail.index, tail, color=style.colour, linewidth=0.6, alpha=0.6, zorder=2)
        if band is not None:
            # Markers of different methods are offset along x.
            apart = (0.03 + 0.22 * number / len(curves), 0.22) if len(band.x) > 6 else None
            axes.plot(band.x, band.mean, markevery=apart, zorder=3, label=method, **style.drawn(3.6))
            axes.fill_between(band.x, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0, zorder=1.5)
    tidy(axes)
    axes.margins(x=0.015, y=0.05)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=not in_bytes))
    axes.xaxis.set_major_formatter(EngFormatter("B", sep=" ") if in_bytes else "{x:,.10g}")
    axes.xaxis.set_minor_locator(AutoMinorLocator(2))
    axes.set_xlabel(x_label, fontsize=8, color=INK)
    axes.set_ylabel(y_label, fontsize=8, color=INK)
    return figure


def _finite(series: pd.Series) -> pd.Series:
    x, y = series.index.to_numpy(dtype=float), series.to_numpy(dtype=float, na_value=math.nan)
    finite = np.isfinite(x) & np.isfinite(y)
    values = pd.Series(y[finite], index=x[finite]).sort_index(kind="stable")
    return values[~values.index.duplicated(keep="last")]
