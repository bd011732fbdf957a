"""Figures of a run: the partition (clients x classes), and ROC curves per class.

The figures use `matplotlib.figure.Figure` without pyplot, which keeps global state and selects a window system, so they
can be built in any thread or process. `figure.savefig` writes PNG, SVG or PDF.
"""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedlit.metrics.auroc import ClassAUROC, class_auroc, roc_counts

INK = "#222222"
FAINT = "#767676"
BAR = "#6b7f95"
# Okabe and Ito's palette without yellow, which is not visible on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#7A7A7A")
DASHES = (
    "-", (0, (6, 2)), (0, (2, 1.2)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (10, 2.5)), (0, (4, 1, 1, 1, 1, 1)),
    (0, (3, 3)),
)  # fmt: skip
CURVES_IN_ONE_PANEL = len(COLOURS)
EDGE = "#dcdcdc"
HATCHED = {"facecolor": "#f6f6f6", "edgecolor": "#cbcbcb", "hatch": "/////", "linewidth": 0.4}
BLANK = {"facecolor": "white", "edgecolor": EDGE, "linewidth": 0.4}
LONGEST_NAME = 32
SMALLEST_TEXT = 4.5
MOST_ROWS = 120
"""Largest number of clients with a row of text each in a figure of the partition."""
UNLABELLED = "#dddddd"
LETTER = 0.0083
"""Width of a letter in inches per point of the font size: an average with some margin."""
MOST_CURVE_POINTS = 2000


def partition_figure(positives: pd.DataFrame, sizes: pd.Series, title: str | None = None) -> Figure:
    """Draw clients x classes: colour is the share of positive images of a client, text is the count.

    Counts are printed if the cells are large enough. Classes that a client does not label are hatched, and classes that
    it labels without any positive are white with a 0. Rows and columns keep their order. With more than 120 clients,
    only some are named, rows become thinner, and classes that are not labelled are grey.

    Args:
        positives: Number of positive images, clients (index) x classes (columns); NaN for unlabelled classes.
        sizes: Number of images of each client, with the same index in any order.
        title: Title of the figure; none by default.
    """
    sizes = sizes.reindex(positives.index)
    counts = positives.to_numpy(dtype=float, na_value=math.nan)
    prevalence = counts / np.maximum(sizes.to_numpy(dtype=float), 1)[:, None]
    (rows, columns), many = counts.shape, len(positives) > MOST_ROWS
    named = np.linspace(0, rows - 1, 30).round().astype(int) if many else np.arange(rows)
    clients, classes = [printed(positives.index[row]) for row in named], [printed(name) for name in positives.columns]
    cell_width, cell_height = np.clip(8.4 / columns, 0.22, 0.62), np.clip(10 / rows, 0.16, 0.3)
    text = 7.0 if many else max(6.0, min(8.0, cell_height * 72 * 0.62))
    letter = LETTER * text
    width = max(columns * cell_width + 1.7 + letter * max(map(len, clients)), 4.5)
    height = (8.0 if many else rows * cell_height + 0.9) + letter * max(map(len, classes))
    figure = blank_figure(width, height + (0.35 if title else 0))
    grid, side = figure.subplots(1, 2, width_ratios=(columns * cell_width, 1.1))
    ramp, norm = _shades(prevalence)
    shades, keys = (_rows if many else _cells)(grid, counts, prevalence, ramp, norm)
    grid.set(xlim=(0, columns), ylim=(rows, 0))
    grid.set_yticks(named + 0.5, clients, fontsize=text)
    grid.xaxis.tick_top()
    grid.set_xticks(np.arange(columns) + 0.5, classes, fontsize=text, rotation=90)
    if many:
        side.fill_betweenx(np.arange(rows + 1), np.append(sizes, sizes.iloc[-1]), step="post", color=BAR, linewidth=0)
        heading = f"images: {int(sizes.min()):,} to {int(sizes.max()):,}"
    else:
        bars = side.barh(np.arange(rows) + 0.5, sizes, height=0.72, color=BAR, linewidth=0)
        side.bar_label(bars, [f"{int(size):,}" for size in sizes], padding=3, fontsize=text - 0.5, color=INK)
        heading = "images"
    side.set(xlim=(0, max(sizes.max(), 1)), ylim=(rows, 0), xticks=[], yticks=[])
    side.set_title(heading, fontsize=text, color=INK, pad=3, loc="left")
    for axes in (grid, side):
        axes.tick_params(length=0, pad=3, colors=INK)
        axes.spines[:].set_visible(many)
    if not many:
        side.spines["left"].set(visible=True, color=FAINT, linewidth=0.6)
    _explain(figure, [grid, side], shades, keys, columns * cell_width + 1.1, prevalence)
    if title:
        _heading(figure, f"{title}, {rows:,} clients" if many else title)
    if not many:
        _write_counts(figure, grid, counts, ramp(norm(prevalence)))
    return figure


def _cells(
    grid: Axes, counts: np.ndarray, prevalence: np.ndarray, ramp: LinearSegmentedColormap, norm: PowerNorm
) -> tuple[ScalarMappable, list[Patch]]:
    """Draw few clients as cells; return the shades and the legend of cells without a shade."""
    coloured = np.ma.masked_where(~(prevalence > 0), prevalence)
    mesh = grid.pcolormesh(coloured, cmap=ramp, norm=norm, edgecolors=EDGE, linewidth=0.4)
    keys = []
    for style, cells, meaning in (
        (HATCHED, np.isnan(counts), "not labelled"),
        (BLANK, counts == 0, "labelled, no positive"),
    ):
        squares = [Rectangle((x, y), 1, 1) for y, x in np.argwhere(cells)]
        grid.add_collection(PatchCollection(squares, clip_on=False, **style))
        keys += [Patch(label=meaning, **style)] * bool(squares)
    return mesh, keys


def _rows(
    grid: Axes, counts: np.ndarray, prevalence: np.ndarray, ramp: LinearSegmentedColormap, norm: PowerNorm
) -> tuple[ScalarMappable, list[Patch]]:
    """Draw many clients as an image; return the shades and the legend of cells without a shade."""
    colours, keys = ramp(norm(np.nan_to_num(prevalence))), []
    for meaning, colour, cells in (
        ("not labelled", UNLABELLED, np.isnan(counts)),
        ("labelled, no positive", "white", counts == 0),
    ):
        colours[cells] = to_rgba(colour)
        keys += [Patch(label=meaning, facecolor=colour, edgecolor=EDGE, linewidth=0.4)] * bool(cells.any())
    grid.imshow(colours, aspect="auto", extent=(0, counts.shape[1], len(counts), 0))
    return ScalarMappable(norm, ramp), keys


def _shades(prevalence: np.ndarray) -> tuple[LinearSegmentedColormap, PowerNorm]:
    ramp = LinearSegmentedColormap.from_list("prevalence", colormaps["Blues"](np.linspace(0.12, 1.0, 256)))
    most = np.nanmax(prevalence) if np.isfinite(prevalence).any() else 0.0
    # The square root separates rare findings, which would all be white on a linear scale.
    return ramp, PowerNorm(0.5, vmin=0, vmax=most if most > 0 else 1)


def _explain(
    figure: Figure, axes: list[Axes], shades: ScalarMappable, keys: list[Patch], width: float, prevalence: np.ndarray
) -> None:
    if (prevalence > 0).any():
        shrink = min(1.0, 2.2 / width)
        bar = figure.colorbar(shades, ax=axes, location="bottom", shrink=shrink, anchor=(0, 1), aspect=18, pad=0.02)
        bar.ax.xaxis.set(major_locator=MaxNLocator(3), major_formatter=lambda share, _: f"{100 * share:g}%")
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=6.5, length=2, width=0.5, colors=INK, pad=1.5)
        bar.outline.set(linewidth=0.4, edgecolor=FAINT)
        bar.set_label("positive among the client's images", fontsize=7, color=INK)
    if keys:
        figure.legend(handles=keys, loc="outside lower right", ncols=1, frameon=False, fontsize=7, labelcolor=INK)


def roc_figure(scores: Tensor, labels: Tensor, classes: Sequence[str], title: str | None = None) -> Figure:
    """Draw the ROC curve of each class with its AUROC and support (positives+, negatives-).

    Up to eight classes share one panel, with different colours and dashes; more classes have one panel each. A class
    without positives or without negatives has no curve and is marked as undefined. Curves of more than 2,000 corners
    are thinned for drawing; the AUROC is exact.

    Args:
        scores: `[N, C]` floating point and finite.
        labels: `[N, C]` with 1 positive, 0 negative, NaN unlabelled.
        classes: Names of the C columns.
        title: Title of the figure, which also has the mean AUROC over the defined classes; none by default.

    Raises:
        ValueError: As `class_auroc`.
    """
    scores, labels = scores.detach().cpu(), labels.detach().cpu()
    result = class_auroc(scores, labels, classes)
    curves = [_curve(scores[:, c], labels[:, c]) for c in range(len(classes))]
    draw = _one_panel if len(classes) <= CURVES_IN_ONE_PANEL else _many_panels
    figure = draw(curves, result, 0.4 if title else 0)
    if title:
        _heading(figure, title, _mean(result))
    return figure


def _write_counts(figure: Figure, grid: Axes, counts: np.ndarray, colours: np.ndarray) -> None:
    """Print the counts as large as the cells of the figure allow."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # done, and the texts do not change it
    box, (rows, columns) = grid.get_window_extent(), counts.shape
    width, height = 72 * box.width / columns / figure.dpi, 72 * box.height / rows / figure.dpi
    cells = np.argwhere(~np.isnan(counts))
    texts = [f"{counts[row, column]:.0f}" for row, column in cells]
    size = min(7.5, 0.62 * height, 0.85 * width / (72 * LETTER * max(map(len, texts), default=1)))
    if size < SMALLEST_TEXT:
        return
    for (row, column), text in zip(cells, texts, strict=True):
        dark = text != "0" and colours[row, column, :3] @ (0.299, 0.587, 0.114) < 0.55
        ink = FAINT if text == "0" else "white" if dark else INK
        middle = {"ha": "center", "va": "center_baseline"}
        # Excluded from the layout, which would measure each of thousands of texts.
        grid.text(column + 0.5, row + 0.5, text, fontsize=size, color=ink, **middle).set_in_layout(False)


def _curve(scores: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """Return false and true positive rates of one class, or None if it is undefined."""
    labelled = (labels == 0) | (labels == 1)
    false, true = (count.numpy() for count in roc_counts(scores[labelled], labels[labelled] == 1))
    if not false[-1] or not true[-1]:
        return None
    corner = np.ones(len(false), dtype=bool)
    corner[1:-1] = np.diff(false)[1:] * np.diff(true)[:-1] != np.diff(false)[:-1] * np.diff(true)[1:]
    corners = np.flatnonzero(corner)
    if len(corners) > MOST_CURVE_POINTS:
        corners = corners[np.linspace(0, len(corners) - 1, MOST_CURVE_POINTS).round().astype(int)]
    return false[corners] / false[-1], true[corners] / true[-1]


def _support(result: ClassAUROC, column: int) -> str:
    return f"{int(result.n_pos[column]):,}+ / {int(result.n_neg[column]):,}\u2212"


def _one_panel(curves: list, result: ClassAUROC, above: float) -> Figure:
    labels = [
        f"{printed(name)}: {'undefined' if curve is None else format(value, '.3f')}  ({_support(result, column)})"
        for column, (name, curve, value) in enumerate(zip(result.classes, curves, result.auroc.tolist(), strict=True))
    ]
    heading = "AUROC (positives+ / negatives\u2212)"
    figure = blank_figure(4.3 + 7.5 * LETTER * max(map(len, (*labels, heading))), 3.8 + above)
    axes = figure.subplots()
    roc_axes(axes)
    axes.set_xlabel("false positive rate", fontsize=8, color=INK)
    axes.set_ylabel("true positive rate", fontsize=8, color=INK)
    for column, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        style = {"linestyle": "none"} if curve is None else {"color": COLOURS[column], "linestyle": DASHES[column]}
        axes.plot(*(curve or ([], [])), linewidth=1.3, label=label, **style)
    letters = {"frameon": False, "fontsize": 7.5, "handlelength": 3, "labelcolor": INK, "title_fontsize": 7.5}
    legend = figure.legend(loc="outside right upper", title=heading, alignment="left", **letters)
    for text, curve in zip(legend.get_texts(), curves, strict=True):
        if curve is None:
            text.set(color=FAINT, style="italic")
    return figure


def _many_panels(curves: list, result: ClassAUROC, above: float) -> Figure:
    across = min(8, math.ceil(math.sqrt(1.5 * len(curves))))
    down = math.ceil(len(curves) / across)
    panel = 1.5 if across <= 5 else 1.25
    figure = blank_figure(0.5 + across * panel, 0.5 + down * (panel + 0.25) + above, "compressed")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for column, (axes, name, curve) in enumerate(zip(grid.flat, result.classes, curves, strict=False)):
        roc_axes(axes)
        axes.set_title(wrapped(name, panel, 7), fontsize=7, color=INK, pad=3)
        axes.tick_params(labelsize=6, labelbottom=column + across >= len(curves))
        if curve is None:
            note, ink = "undefined", FAINT
            axes.set_facecolor("#f4f4f4")
        else:
            note, ink = f"{result.auroc[column]:.3f}", INK
            axes.plot(*curve, color=COLOURS[0], linewidth=1.2)
            axes.fill_between(*curve, color=COLOURS[0], alpha=0.1, linewidth=0)
        axes.text(0.95, 0.19, note, fontsize=8, weight="bold", color=ink, ha="right", va="bottom")
        axes.text(0.95, 0.06, _support(result, column), fontsize=6, color=ink, ha="right", va="bottom")
    for axes in grid.flat[len(curves) :]:
        axes.remove()
    figure.supxlabel("false positive rate", fontsize=8, color=INK)
    figure.supylabel("true positive rate", fontsize=8, color=INK)
    return figure


def roc_axes(axes: Axes) -> None:
    """Prepare square axes of two rates with the chance diagonal."""
    axes.plot([0, 1], [0, 1], color="#c4c4c4", linewidth=0.7, zorder=0.5)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
    axes.set_yticks((0, 0.5, 1), ("0", "0.5", "1"))
    axes.tick_params(labelsize=7, length=2, width=0.5, color=FAINT, labelcolor=INK, pad=2)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.6)


def _mean(result: ClassAUROC) -> str:
    defined = int((~result.auroc.isnan()).sum())
    if not defined:
        return "no class has both positives and negatives"
    return f"mean AUROC {result.mean:.3f} over {defined} of {len(result.classes)} classes"


def _heading(figure: Figure, *lines: str) -> None:
    text = "\n".join(wrapped(line, figure.get_figwidth(), 10) for line in lines)
    figure.suptitle(text, fontsize=9.5, color=INK, x=0.01, ha="left")


def blank_figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """Return an empty white figure of a size in inches."""
    figure = Figure(figsize=(width, height), dpi=200, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


def printed(name: object) -> str:
    """Return a name as one line of at most 32 characters, with dollar signs escaped."""
    text = " ".join(str(name).split())
    text = text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "\u2026"
    return text.replace("$", r"\$")


def wrapped(text: str, width: float, size: float) -> str:
    """Wrap a text into at most three lines of a width in inches at a font size in points."""
    letters = max(8, int(width / (LETTER * size)))
    return textwrap.fill(str(text), letters, max_lines=3, placeholder="\u2026").replace("$", r"\$")
