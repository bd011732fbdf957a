"""Figures of a run: the partition (clients x classes), and ROC curves per class.

The figures use `matplotlib.figure.Figure` without pyplot, which keeps global state and selects a window system, so they
can be built in any thread or process. `figure.savefig` writes PNG, SVG or PDF; `figure.canvas.print_png` draws once
instead of twice. Everything has its place in inches: finding a layout takes matplotlib longer than drawing, and each
run of a sweep has two figures.
"""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D
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
EDGE = "#dcdcdc"
HATCHED = {"facecolor": "#f6f6f6", "edgecolor": "#cbcbcb", "hatch": "/////", "linewidth": 0.4}
BLANK = {"facecolor": "white", "edgecolor": EDGE, "linewidth": 0.4}
LONGEST_NAME = 32
SMALLEST_TEXT = 4.5
BELOW = 0.62
"""Inches below the partition for what colours and hatches mean."""
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
    bars = [] if many else [f"{int(size):,}" for size in sizes]
    heading = f"images: {int(sizes.min()):,} to {int(sizes.max()):,}" if many else "images"
    left, above = (_longest(names, text) + 0.12 for names in (clients, classes))
    right = max(1.1 + _longest(bars, text), _longest([heading], text)) + 0.1
    width, height = max(columns * cell_width, 4.3 - left - right), 7 if many else rows * cell_height
    title = f"{title}, {rows:,} clients" if title and many else title
    figure = _page(left + width + 0.12 + right, BELOW + height + above, title)
    grid = axes_at(figure, left, BELOW, width, height)
    side = axes_at(figure, left + width + 0.12, BELOW, 1.1, height)
    ramp, norm = _shades(prevalence)
    shades, keys = (_rows if many else _cells)(grid, counts, prevalence, ramp, norm)
    grid.set(xlim=(0, columns), ylim=(rows, 0))
    grid.set_yticks(named + 0.5, clients, fontsize=text)
    grid.xaxis.tick_top()
    grid.set_xticks(np.arange(columns) + 0.5, classes, fontsize=text, rotation=90)
    if many:
        side.fill_betweenx(np.arange(rows + 1), np.append(sizes, sizes.iloc[-1]), step="post", color=BAR, linewidth=0)
    else:
        drawn = side.barh(np.arange(rows) + 0.5, sizes, height=0.72, color=BAR, linewidth=0)
        side.bar_label(drawn, bars, padding=3, fontsize=text - 0.5, color=INK)
    side.set(xlim=(0, max(sizes.max(), 1)), ylim=(rows, 0), xticks=[], yticks=[])
    side.set_title(heading, fontsize=text, color=INK, pad=3, loc="left")
    for axes in (grid, side):
        axes.tick_params(length=0, pad=3, colors=INK)
        axes.spines[:].set_visible(many)
    if not many:
        side.spines["left"].set(visible=True, color=FAINT, linewidth=0.6)
    if (prevalence > 0).any():
        _explain(figure, shades, axes_at(figure, left, BELOW - 0.19, min(2.2, width + 1.2), 0.12))
    if keys:
        look = {"frameon": False, "fontsize": 7, "labelcolor": INK, "borderaxespad": 0.2}
        figure.legend(handles=keys, loc="lower right", **look)
    if not many:
        _write_counts(grid, counts, ramp(norm(prevalence)), 72 * width / columns, 72 * height / rows)
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


def _explain(figure: Figure, shades: ScalarMappable, axes: Axes) -> None:
    bar = figure.colorbar(shades, cax=axes, orientation="horizontal")
    axes.xaxis.set(major_locator=MaxNLocator(3), major_formatter=lambda share, _: f"{100 * share:g}%")
    bar.ax.minorticks_off()
    axes.tick_params(labelsize=6.5, length=2, width=0.5, colors=INK, pad=1.5)
    bar.outline.set(linewidth=0.4, edgecolor=FAINT)
    bar.set_label("positive among the client's images", fontsize=7, color=INK, labelpad=1, loc="left")


def roc_figure(scores: Tensor, labels: Tensor, classes: Sequence[str], title: str | None = None) -> Figure:
    """Draw the ROC curve of each class with its AUROC and support (positives+, negatives-).

    A class without positives or without negatives has no curve and is marked as undefined. Curves of more than 2,000
    corners are thinned for drawing; the AUROC is exact.

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
    across = max(1, min(8, len(classes), math.ceil(math.sqrt(1.5 * len(classes)))))
    down = math.ceil(len(classes) / across)
    panel = min(2.6, max(1.25, 7.5 / across))
    names = [wrapped(name, panel, 7) for name in result.classes]
    row = panel + 0.11 * (1 + max((name.count("\n") for name in names), default=0))
    width, height = 0.5 + across * panel, 0.4 + down * row
    figure = _page(width, height, title and f"{title}\n{_mean(result)}")
    # Panels are squares on one pair of axes: a pair for each takes four times as long.
    page = axes_at(figure, 0, 0, width, height)
    page.set(xlim=(0, width), ylim=(0, height))
    page.set_axis_off()
    for column, (name, curve) in enumerate(zip(names, curves, strict=True)):
        x, y = 0.45 + panel * (column % across), 0.4 + row * (down - 1 - column // across)
        place = {"transform": Affine2D().scale(panel - 0.1).translate(x, y) + page.transData}
        face, note, ink = (
            ("#f4f4f4", "undefined", FAINT) if curve is None else ("none", f"{result.auroc[column]:.3f}", INK)
        )
        page.add_patch(Rectangle((0, 0), 1, 1, facecolor=face, edgecolor=FAINT, linewidth=0.6, **place))
        page.plot([0, 1], [0, 1], color="#c4c4c4", linewidth=0.7, **place)
        if curve is not None:
            page.plot(*curve, color=COLOURS[0], linewidth=1.2, **place)
            page.fill_between(*curve, color=COLOURS[0], alpha=0.1, linewidth=0, **place)
        page.text(0.5, 1.03, name, fontsize=7, color=INK, ha="center", va="bottom", **place)
        page.text(0.96, 0.19, note, fontsize=8, weight="bold", color=ink, ha="right", va="bottom", **place)
        page.text(0.96, 0.06, _support(result, column), fontsize=6, color=ink, ha="right", va="bottom", **place)
        for rate in (0, 0.5, 1):
            if column % across == 0:
                page.text(-0.03, rate, f"{rate:g}", fontsize=6, color=INK, ha="right", va="center", **place)
            if column + across >= len(classes):
                page.text(rate, -0.03, f"{rate:g}", fontsize=6, color=INK, ha="center", va="top", **place)
    page.text(width / 2, 0.06, "false positive rate", fontsize=8, color=INK, ha="center", va="bottom")
    page.text(0.06, height / 2, "true positive rate", fontsize=8, color=INK, va="center", rotation=90)
    return figure


def _write_counts(grid: Axes, counts: np.ndarray, colours: np.ndarray, width: float, height: float) -> None:
    """Print the counts as large as cells of a width and a height in points allow."""
    cells = np.argwhere(~np.isnan(counts))
    texts = [f"{counts[row, column]:.0f}" for row, column in cells]
    size = min(7.5, 0.62 * height, 0.85 * width / (72 * LETTER * max(map(len, texts), default=1)))
    if size < SMALLEST_TEXT:
        return
    for (row, column), text in zip(cells, texts, strict=True):
        dark = text != "0" and colours[row, column, :3] @ (0.299, 0.587, 0.114) < 0.55
        ink = FAINT if text == "0" else "white" if dark else INK
        grid.text(column + 0.5, row + 0.5, text, fontsize=size, color=ink, ha="center", va="center_baseline")


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


def _longest(texts: Sequence[str], size: float) -> float:
    renderer, font = RendererAgg(1, 1, 150), FontProperties(size=size)
    return max((renderer.get_text_width_height_descent(text, font, False)[0] for text in texts), default=0) / 150


def _page(width: float, height: float, title: str | None) -> Figure:
    """Return an empty figure of a width and a height in inches, with a title above it."""
    text = "\n".join(wrapped(line, width, 10) for line in (title or "").splitlines())
    height += 0.16 * (1 + text.count("\n")) + 0.12 if text else 0.1
    figure = blank_figure(width, height, "none")
    figure.text(0.08 / width, 1 - 0.06 / height, text, fontsize=9.5, color=INK, va="top")
    return figure


def axes_at(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Return new axes at a place and of a size in inches."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def blank_figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """Return an empty white figure of a size in inches."""
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout=layout)
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
