"""Curves over a run's progress: what is reached after how many rounds, iterations or bytes, and client drift."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoMinorLocator, FuncFormatter, MaxNLocator, NullFormatter

from fedlit.reports.compare.styles import COLUMN, TEXT, Legend, Style, entry, named, placer, require_styles, tidy
from fedlit.reports.figures import FAINT, INK, blank_figure, widest

MOST_POINTS = 400
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
LEFT, RIGHT, BOTTOM, TOP = 0.52, 0.1, 0.42, 0.1
# Names are written beside the curves unless that leaves them less than this share of the figure.
LEAST_PANEL = 0.58
LABEL_GAP = 0.15
Curves = Mapping[str, Sequence[pd.Series]]


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve and its spread.

    Attributes:
        x: `[G]` float64, rising.
        mean: `[G]`.
        low: `[G]` lower edge; NaN where there is no spread to show.
        high: `[G]` upper edge.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of the band over seeds, `[S, G]` to twice `[G]`.

    Mean -/+ one standard deviation (n - 1) from three seeds on. Two seeds are shown as they are, as a standard
    deviation of two is hardly known: the edges are their values. One has no band (NaN).
    """
    if len(values) < 2:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    if len(values) == 2:
        return values.min(0), values.max(0)
    mean, deviation = values.mean(0), values.std(0, ddof=1)
    return mean - deviation, mean + deviation


def band_note(curves: Curves) -> str:
    """Return what lines and bands mean, as a sentence for the caption."""
    most = max((sum(len(_clean(one, False)) > 0 for one in series) for series in curves.values()), default=0)
    if most < 2:
        return "One seed a method."
    if most == 2:
        return "Mean of two seeds; the band is between them."
    return "Mean over seeds; the band is one standard deviation to either side (of two seeds, between them)."


def average(series: Sequence[pd.Series], positive: bool = False) -> tuple[Band | None, list[pd.Series]]:
    """Return the mean curve where all seeds have one, and the rest of each seed that goes on alone.

    Seeds are joined on the union of their x, linearly between their points; values that are not finite are left out.

    Args:
        series: One a seed, x as index, in any order.
        positive: Leave out x of 0 and below, for a logarithmic axis.
    """
    seeds = [clean for one in series if len(clean := _clean(one, positive))]
    if not seeds:
        return None, []
    start, stop = max(one.index[0] for one in seeds), min(one.index[-1] for one in seeds)
    grid = np.unique(np.concatenate([one.index.to_numpy() for one in seeds]))
    grid = grid[(grid >= start) & (grid <= stop)]
    if not len(grid):
        return None, seeds
    grid = _thinned(grid)
    values = np.stack([np.interp(grid, one.index, one.to_numpy()) for one in seeds])
    tails = [one[one.index >= stop] for one in seeds if one.index[-1] > stop]
    return Band(grid, values.mean(0), *spread(values)), tails


def curves_figure(
    curves: Curves,
    x_label: str,
    y_label: str,
    styles: Mapping[str, Style],
    *,
    in_bytes: bool = False,
    log_x: bool = False,
    log_y: bool = False,
    width: float = COLUMN,
    height: float | None = None,
) -> Figure:
    """Draw each method's mean over seeds with its band (see `spread` and `band_note`).

    Names stand beside the curves, in their order at the end, or below where they are too long. A method's mean ends
    with its shortest seed; longer ones go on as thin lines. A method without values is named as such.

    Args:
        curves: A series a seed for each method; the index is x.
        x_label: What x is, such as "rounds".
        y_label: What y is, such as "validation AUROC".
        styles: Of all methods.
        in_bytes: x is in bytes: shown in kB, MB, GB or TB.
        log_x: Logarithmic x; points at 0 are left out.
        log_y: Logarithmic y.
        width: Of the figure, inches.
        height: Inches; by default as the width asks for.

    Raises:
        ValueError: Without any method, or if one has no style.
    """
    methods = list(curves)
    require_styles(methods, styles)
    labels = [_label(method, curves[method]) for method in methods]
    side = 0.5 + widest([named(label) for label in labels], TEXT) + 0.04
    beside = len(methods) > 1 and LEFT + side < (1 - LEAST_PANEL) * width + LEFT
    legend = Legend(styles, methods, width - LEFT)
    below = 0.0 if beside or len(methods) == 1 else legend.height
    panel = width - LEFT - (side if beside else RIGHT)
    height = height or TOP + BOTTOM + below + min(0.72 * panel + 0.25, 3.0)
    figure = blank_figure(width, height)
    place = placer(figure)
    axes = place(LEFT, BOTTOM + below, panel, height - TOP - BOTTOM - below)
    ends = _draw(axes, curves, styles, log_x, log_y)
    if log_y:
        _label_log(axes)
    axes.set_ylabel(y_label, fontsize=8, color=INK)
    axes.set_xlabel(_scale_x(axes, x_label, in_bytes, log_x), fontsize=8, color=INK)
    if beside:
        names = place(width - side, BOTTOM + below, side, height - TOP - BOTTOM - below)
        _label_ends(axes, names, side, ends, dict(zip(methods, labels, strict=True)), styles)
    elif len(methods) > 1:
        legend.draw(place, LEFT - 0.1, 0.02)
    return figure


def drift_figure(
    drift: Curves,
    styles: Mapping[str, Style],
    *,
    y_label: str = "client drift",
    log_y: bool = True,
    width: float = COLUMN,
) -> Figure:
    """Draw each method's client drift by round, on a logarithmic scale: see `curves_figure`.

    Args:
        drift: A series a seed for each method; the index is the round.
        styles: Of all methods.
        y_label: What is shown, such as "client drift" or "alignment of updates".
        log_y: Logarithmic y, as drift falls by orders of magnitude; False for values of either sign.
        width: Of the figure, inches.

    Raises:
        ValueError: As `curves_figure`.
    """
    return curves_figure(drift, "round", y_label, styles, log_y=log_y, width=width)


def _label_log(axes: Axes) -> None:
    """Write 2e-3 beside a logarithmic axis, which fits; within a decade beside the ticks in between too."""
    low, high = axes.get_ylim()
    short = FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e"))
    axes.yaxis.set_major_formatter(short)
    axes.yaxis.set_minor_formatter(short if high < 10 * low else NullFormatter())
    axes.tick_params(axis="y", which="minor", labelsize=TEXT)


def _clean(series: pd.Series, positive: bool) -> pd.Series:
    x, y = series.index.to_numpy(dtype=float), series.to_numpy(dtype=float, na_value=math.nan)
    kept = np.isfinite(x) & np.isfinite(y) & ((x > 0) | (not positive))
    clean = pd.Series(y[kept], index=x[kept]).sort_index(kind="stable")
    return clean[~clean.index.duplicated(keep="last")]


def _thinned(grid: np.ndarray) -> np.ndarray:
    if len(grid) <= MOST_POINTS:
        return grid
    return grid[np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)]


def _label(method: str, series: Sequence[pd.Series]) -> str:
    return method if any(len(_clean(one, False)) for one in series) else f"{method} (none)"


def _draw(axes: Axes, curves: Curves, styles: Mapping[str, Style], log_x: bool, log_y: bool) -> dict[str, float]:
    """Draw all curves and return the y where each method ends."""
    ends = {}
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    for number, (method, series) in enumerate(curves.items()):
        style = styles[method]
        band, tails = average(series, positive=log_x)
        for tail in tails:
            axes.plot(tail.index, tail, color=style.colour, linewidth=0.6, alpha=0.6, zorder=2)
            ends[method] = float(tail.iloc[-1])
        if band is None:
            continue
        axes.fill_between(band.x, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0, zorder=1.5)
        # Markers of different methods stand apart along x.
        apart = (0.03 + 0.22 * number / len(curves), 0.22) if len(band.x) > 6 else None
        axes.plot(
            band.x,
            band.mean,
            color=style.colour,
            linestyle=style.line,
            linewidth=1.3,
            marker=style.marker,
            markersize=style.marker_size(3.6),
            markeredgecolor="white",
            markeredgewidth=0.4,
            markevery=apart,
            zorder=3,
            label=method,
        )
        ends[method] = float(band.mean[-1])
    tidy(axes, "both" if log_x else "y")
    axes.margins(x=0.015, y=0.05)
    return ends


def _scale_x(axes: Axes, label: str, in_bytes: bool, log: bool) -> str:
    """Set the ticks of x and return its label, with its unit."""
    most = axes.dataLim.x1 if np.isfinite(axes.dataLim.x1) else 1.0
    if in_bytes and log:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _bytes(x)))
        return label
    factor, unit = next((pair for pair in UNITS if most >= pair[0]), UNITS[-1]) if in_bytes else (1, "")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / factor:,.10g}"))
    if not log:
        # Round numbers of the unit, which are round numbers of bytes too.
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=not in_bytes))
        axes.xaxis.set_minor_locator(AutoMinorLocator(2))
    return f"{label} ({unit})" if unit else label


def _bytes(count: float) -> str:
    factor, unit = next((pair for pair in UNITS if count >= pair[0]), UNITS[-1])
    return f"{count / factor:g} {unit}"


def _label_ends(
    axes: Axes,
    names: Axes,
    width: float,
    ends: Mapping[str, float],
    labels: Mapping[str, str],
    styles: Mapping[str, Style],
) -> None:
    """Write each method's name near the end of its curve, on axes to the right that are `width` inches wide."""
    height = names.figure.get_figheight() * names.get_position().height
    names.set(xlim=(0, width), ylim=(0, height))
    names.set_axis_off()
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    heights = {
        method: float(axes.transAxes.inverted().transform(axes.transData.transform((1, y)))[1]) * height
        for method, y in ends.items()
    }
    heights |= {method: 0.0 for method in labels if method not in ends}
    order = sorted(labels, key=lambda method: heights[method])
    for method, y in zip(order, stacked([heights[m] for m in order], LABEL_GAP, height), strict=True):
        if method in ends:
            names.plot([0.02, 0.1], [heights[method], y], color=FAINT, linewidth=0.5, clip_on=False)
        entry(names, 0.12, y, labels[method], styles[method])


def stacked(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Return positions in the given order that are `gap` apart, as near as they can be to the rising ones wanted.

    Least squares by pooling neighbours that are too near (isotonic regression), then kept within 0 and `top` where
    they fit.
    """
    pools: list[list[float]] = []
    for number, position in enumerate(wanted):
        pools.append([position - number * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1].extend(last)
    flat = [float(np.mean(pool)) for pool in pools for _ in pool]
    highest = top - (len(flat) - 1) * gap
    return [max(min(position, highest), min(0.0, highest)) + number * gap for number, position in enumerate(flat)]
