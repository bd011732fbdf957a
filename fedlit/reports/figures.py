"""Figures of a run: who holds what (clients x classes), and ROC curves per class.

Everything is drawn on `matplotlib.figure.Figure` directly: pyplot keeps global state and picks a window
system, while these figures can be built in any thread or process. `figure.savefig` writes PNG, SVG or PDF.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection, QuadMesh
from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from torch import Tensor

from fedlit.metrics.auroc import ClassAUROC, class_auroc, roc_counts

INK = "#222222"
FAINT = "#767676"
BAR = "#6b7f95"
# Okabe and Ito's palette without its yellow, which is lost on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#7A7A7A")
DASHES = (
    "-",
    (0, (6, 2)),
    (0, (2, 1.2)),
    (0, (7, 2, 1.5, 2)),
    (0, (1, 1)),
    (0, (10, 2.5)),
    (0, (4, 1, 1, 1, 1, 1)),
)
DASHES += ((0, (3, 3)),)
CURVES_IN_ONE_PANEL = len(COLOURS)
EDGE = "#dcdcdc"
HATCHED = {"facecolor": "#f6f6f6", "edgecolor": "#cbcbcb", "hatch": "/////", "linewidth": 0.4}
BLANK = {"facecolor": "white", "edgecolor": EDGE, "linewidth": 0.4}
LONGEST_NAME = 32
SMALLEST_TEXT = 4.5
# Bold text of 10 points is as wide as this size in regular.
BOLD_TITLE = 12.0
MOST_CURVE_POINTS = 2000


def partition_figure(positives: pd.DataFrame, sizes: pd.Series, title: str | None = None) -> Figure:
    """Draw clients x classes: colour is the share of a client's images that are positive, text the count.

    Counts are written where cells leave room for them. A hatched cell is a class that the client does not
    label; a white one with a 0, a class that it labels without a single positive. Rows and columns keep the
    given order.

    Args:
        positives: Number of positive images, clients (index) x classes (columns); NaN where unlabelled.
        sizes: Number of images of each client, by the same index in any order.
        title: Printed above; none by default.

    Raises:
        ValueError: If there is nothing to draw, the clients differ or repeat, or a count is negative or above
            the client's size.
    """
    sizes = _check_partition(positives, sizes)
    counts = positives.to_numpy(dtype=float, na_value=math.nan)
    prevalence = counts / np.maximum(sizes.to_numpy(dtype=float), 1)[:, None]
    rows, columns = counts.shape

    clients = [plain(shortened(name)) for name in positives.index]
    classes = [plain(shortened(name)) for name in positives.columns]
    images = [f"{int(size):,}" for size in sizes]
    cell_width, cell_height = np.clip(8.4 / columns, 0.2, 0.62), np.clip(10 / rows, 0.145, 0.3)
    names = max(6.0, min(8.0, cell_height * 72 * 0.62))
    upright = cell_width < 0.3
    left = widest(clients, names) + 0.12
    tallest = widest(classes, names)
    top = (tallest if upright else tallest * math.sin(math.radians(45)) + 0.08) + 0.1 + (0.32 if title else 0)
    overhang = 0 if upright else max(0.0, tallest * math.cos(math.radians(45)) - 1.75)
    bottom, gap, bars = 0.62, 0.14, 1.15
    grid_width, grid_height = columns * cell_width, rows * cell_height
    # The key below the grid and the title above need their room even beside one class.
    drawn = grid_width + gap + bars + widest(images, names) + 0.12 + overhang
    heading = widest([plain(title)], BOLD_TITLE) + 0.1 if title else 0.0
    width = left + max(drawn, 3.6, heading)
    height = top + grid_height + bottom
    figure = blank_figure(width, height)

    def place(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, y / height, w / width, h / height))

    grid = place(left, bottom, grid_width, grid_height)
    ramp = LinearSegmentedColormap.from_list("prevalence", colormaps["Blues"](np.linspace(0.12, 1.0, 256)))
    most = np.nanmax(prevalence) if np.isfinite(prevalence).any() else 0.0
    # The square root spreads the rare findings, which linear colour would merge into white.
    norm = PowerNorm(0.5, vmin=0, vmax=most if most > 0 else 1)
    coloured = np.ma.masked_where(~(prevalence > 0), prevalence)
    mesh = grid.pcolormesh(coloured, cmap=ramp, norm=norm, edgecolors=EDGE, linewidth=0.4)
    for style, cells in ((HATCHED, np.isnan(counts)), (BLANK, counts == 0)):
        squares = [Rectangle((x, y), 1, 1) for y, x in np.argwhere(cells)]
        grid.add_collection(PatchCollection(squares, clip_on=False, **style))
    _write_counts(grid, counts, ramp, norm, prevalence, (cell_width, cell_height))
    grid.set(xlim=(0, columns), ylim=(rows, 0))
    grid.set_yticks(np.arange(rows) + 0.5, clients, fontsize=names)
    grid.xaxis.tick_top()
    turned = {"rotation": 90} if upright else {"rotation": 45, "ha": "left", "va": "bottom", "rotation_mode": "anchor"}
    grid.set_xticks(np.arange(columns) + 0.5, classes, fontsize=names, **turned)
    _bare(grid)

    side = place(left + grid_width + gap, bottom, bars, grid_height)
    side.barh(np.arange(rows) + 0.5, sizes, height=0.72, color=BAR, linewidth=0)
    for row, (size, text) in enumerate(zip(sizes, images, strict=True)):
        side.annotate(
            text,
            (size, row + 0.5),
            xytext=(3, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=names - 0.5,
            color=INK,
        )
    side.set(xlim=(0, max(sizes.max(), 1)), ylim=(rows, 0), xticks=[], yticks=[])
    side.set_title("images", fontsize=names, color=INK, pad=3, loc="left")
    _bare(side)
    side.spines["left"].set(visible=True, color=FAINT, linewidth=0.6)

    _partition_key(place, left, mesh, most, zeros=bool((counts == 0).any()), hatched=bool(np.isnan(counts).any()))
    if title:
        figure.text(left / width, 1 - 0.1 / height, plain(title), fontsize=10, color=INK, va="top", weight="bold")
    return figure


def roc_figure(scores: Tensor, labels: Tensor, classes: Sequence[str], title: str | None = None) -> Figure:
    """Draw the ROC curve of each class with its AUROC and support (positives+, negatives-).

    Up to eight classes share one panel, told apart by colour and by dashes; more get a panel each. A class
    without positives or without negatives has no curve and is named as undefined. Curves of more than 2,000
    corners are thinned for drawing; the AUROC is exact.

    Args:
        scores: `[N, C]` floating point and finite.
        labels: `[N, C]` with 1 positive, 0 negative, NaN unlabelled.
        classes: Names of the C columns.
        title: Printed above, with the mean AUROC over the defined classes; none by default.

    Raises:
        ValueError: As `class_auroc`; also without any class.
    """
    if not classes:
        raise ValueError("Expected at least one class to draw ROC curves of, found none.")
    scores, labels = scores.detach().cpu(), labels.detach().cpu()
    result = class_auroc(scores, labels, classes)
    curves = [_curve(scores[:, c], labels[:, c]) for c in range(len(classes))]
    draw = _one_panel if len(classes) <= CURVES_IN_ONE_PANEL else _many_panels
    return draw(curves, result, title)


def _check_partition(positives: pd.DataFrame, sizes: pd.Series) -> pd.Series:
    """Return `sizes` in the row order of `positives`."""
    if positives.empty:
        raise ValueError(f"Expected at least one client and one class, found a table of {positives.shape}.")
    if not positives.index.is_unique or not sizes.index.is_unique:
        twice = [*positives.index[positives.index.duplicated()], *sizes.index[sizes.index.duplicated()]]
        raise ValueError(f"Expected each client once, found {twice[0]!r} twice.")
    if set(positives.index) != set(sizes.index):
        missing, extra = set(positives.index) - set(sizes.index), set(sizes.index) - set(positives.index)
        raise ValueError(
            "Expected the same clients in positives and sizes, found no size for "
            f"{sorted(map(str, missing))} and no positives for {sorted(map(str, extra))}."
        )
    sizes = sizes.reindex(positives.index)
    if not (sizes >= 0).all():
        client = sizes.index[~(sizes >= 0)][0]
        raise ValueError(f"Expected the number of images of client {client!r}, found {sizes[client]}.")
    counts = positives.to_numpy(dtype=float, na_value=math.nan)
    wrong = (counts < 0) | (counts > sizes.to_numpy(dtype=float)[:, None])
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"Expected 0 to {sizes.iloc[row]} positives of class {positives.columns[column]!r} for client "
            f"{positives.index[row]!r}, its number of images, found {counts[row, column]:g}."
        )
    return sizes


def _write_counts(grid: Axes, counts: np.ndarray, ramp: Colormap, norm: PowerNorm, share: np.ndarray, cell) -> None:
    known = np.argwhere(~np.isnan(counts))
    texts = [str(int(counts[row, column])) for row, column in known]
    width, height = cell
    # Digits are all of one width; measuring each of thousands takes seconds.
    longest = max(texts, key=len, default="")
    size = min(7.5, 72 * height * 0.62, 7.5 * 0.78 * width / max(widest([longest], 7.5), 0.01))
    if size < SMALLEST_TEXT:
        return
    for (row, column), text in zip(known, texts, strict=True):
        red, green, blue, _ = ramp(norm(share[row, column]))
        dark = share[row, column] > 0 and 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
        ink = FAINT if text == "0" else "white" if dark else INK
        grid.text(column + 0.5, row + 0.5, text, fontsize=size, color=ink, ha="center", va="center_baseline")


def _partition_key(
    place: Callable[..., Axes], x: float, mesh: QuadMesh, most: float, zeros: bool, hatched: bool
) -> None:
    """Draw the colour scale and the swatches under the grid, from `x` inches on."""
    if most > 0:
        scale = place(x, 0.24, 1.7, 0.1)
        bar = scale.figure.colorbar(mesh, cax=scale, orientation="horizontal", extend="neither")
        bar.set_ticks(ticks := _share_ticks(most), labels=[f"{100 * tick:g}%" for tick in ticks])
        bar.ax.tick_params(labelsize=6.5, length=2, width=0.5, colors=INK, pad=1.5)
        bar.ax.minorticks_off()
        bar.outline.set(linewidth=0.4, edgecolor=FAINT)
        scale.set_title("positive among the client's images", fontsize=7, color=INK, loc="left", pad=3)
        x += 2.1
    swatches = [(HATCHED, "not labelled")] * hatched + [(BLANK, "labelled, no positive")] * zeros
    for line, (style, meaning) in enumerate(swatches):
        key = place(x, 0.13 + 0.1 * len(swatches) - 0.2 * line, 0.2, 0.12)
        key.add_patch(Rectangle((0, 0), 1, 1, clip_on=False, **style))
        key.annotate(meaning, (1, 0.5), xytext=(4, 0), textcoords="offset points", fontsize=7, color=INK, va="center")
        key.set_axis_off()


def _share_ticks(most: float) -> list[float]:
    """Return round shares up to `most` that stand apart on the square-root scale."""
    chosen = [0.0]
    for percent in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100):
        share = percent / 100
        if share <= most and math.sqrt(share / most) - math.sqrt(chosen[-1] / most) >= 0.19:
            chosen.append(share)
    return chosen


def _curve(scores: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """Return false and true positive rates of one class, or None where it is undefined."""
    known = (labels == 0) | (labels == 1)
    false, true = (count.numpy() for count in roc_counts(scores[known], labels[known] == 1))
    if not false[-1] or not true[-1]:
        return None
    corner = np.ones(len(false), dtype=bool)
    corner[1:-1] = np.diff(false)[1:] * np.diff(true)[:-1] != np.diff(false)[:-1] * np.diff(true)[1:]
    kept = np.flatnonzero(corner)
    if len(kept) > MOST_CURVE_POINTS:
        kept = kept[np.linspace(0, len(kept) - 1, MOST_CURVE_POINTS).round().astype(int)]
    return false[kept] / false[-1], true[kept] / true[-1]


def _support(result: ClassAUROC, column: int) -> str:
    return f"{int(result.n_pos[column]):,}+ / {int(result.n_neg[column]):,}\u2212"


def _one_panel(curves: list, result: ClassAUROC, title: str | None) -> Figure:
    names = [plain(shortened(name)) for name in result.classes]
    entries = [
        f"{name}: {'undefined' if curve is None else format(value, '.3f')}  ({_support(result, column)})"
        for column, (name, curve, value) in enumerate(zip(names, curves, result.auroc.tolist(), strict=True))
    ]
    panel, left, bottom, top = 3.3, 0.55, 0.5, 0.55 if title else 0.12
    width, height = left + panel + 0.25 + 0.5 + widest(entries, 7.5) + 0.05, bottom + panel + top
    figure = blank_figure(width, height)
    axes = figure.add_axes((left / width, bottom / height, panel / width, panel / height))
    roc_axes(axes)
    axes.set_xlabel("false positive rate", fontsize=8, color=INK)
    axes.set_ylabel("true positive rate", fontsize=8, color=INK)
    for column, (curve, entry) in enumerate(zip(curves, entries, strict=True)):
        if curve is None:
            axes.plot([], [], linestyle="none", label=entry)
        else:
            style = {"color": COLOURS[column], "linestyle": DASHES[column]}
            axes.plot(*curve, linewidth=1.3, label=entry, **style)
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.03, 1.0),
        borderaxespad=0,
        frameon=False,
        fontsize=7.5,
        handlelength=3,
        labelcolor=INK,
        title="AUROC (positives+ / negatives\u2212)",
        title_fontsize=7.5,
        alignment="left",
    )
    for text, curve in zip(legend.get_texts(), curves, strict=True):
        if curve is None:
            text.set(color=FAINT, style="italic")
    _heading(figure, left, title, result)
    return figure


def _many_panels(curves: list, result: ClassAUROC, title: str | None) -> Figure:
    count = len(curves)
    across = min(8, math.ceil(math.sqrt(1.5 * count)))
    down = math.ceil(count / across)
    panel = 1.45 if across <= 5 else 1.2
    gap_x, gap_y, left, bottom, top = 0.14, 0.3, 0.6, 0.5, 0.72 if title else 0.3
    width = left + across * panel + (across - 1) * gap_x + 0.15
    height = bottom + down * panel + (down - 1) * gap_y + top
    figure = blank_figure(width, height)
    for column, (name, curve) in enumerate(zip(result.classes, curves, strict=True)):
        row, place = divmod(column, across)
        x = left + place * (panel + gap_x)
        y = height - top - panel - row * (panel + gap_y)
        axes = figure.add_axes((x / width, y / height, panel / width, panel / height))
        roc_axes(axes)
        axes.tick_params(labelleft=place == 0, labelbottom=column + across >= count, labelsize=6)
        axes.set_title(fitting(name, 7, panel), fontsize=7, color=INK, pad=3)
        if curve is None:
            note, ink = "undefined", FAINT
            axes.set_facecolor("#f4f4f4")
        else:
            note, ink = f"{result.auroc[column]:.3f}", INK
            axes.plot(*curve, color=COLOURS[0], linewidth=1.2)
            axes.fill_between(*curve, color=COLOURS[0], alpha=0.1, linewidth=0)
        axes.text(0.95, 0.19, note, fontsize=8, weight="bold", color=ink, ha="right", va="bottom")
        axes.text(0.95, 0.06, _support(result, column), fontsize=6, color=ink, ha="right", va="bottom")
    middle = (bottom + height - top) / 2 / height
    figure.text(0.14 / width, middle, "true positive rate", fontsize=8, color=INK, rotation=90, va="center")
    centre = (left + width - 0.15) / 2 / width
    figure.text(centre, 0.12 / height, "false positive rate", fontsize=8, color=INK, ha="center")
    _heading(figure, left, title, result)
    return figure


def roc_axes(axes: Axes) -> None:
    """Prepare square axes of two rates with the diagonal of chance."""
    axes.plot([0, 1], [0, 1], color="#c4c4c4", linewidth=0.7, zorder=0.5)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
    axes.set_yticks((0, 0.5, 1), ("0", "0.5", "1"))
    axes.tick_params(labelsize=7, length=2, width=0.5, color=FAINT, labelcolor=INK, pad=2)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.6)


def _heading(figure: Figure, left: float, title: str | None, result: ClassAUROC) -> None:
    if not title:
        return
    width, height = figure.get_size_inches()
    defined = int((~result.auroc.isnan()).sum())
    of_all = f"mean AUROC {result.mean:.3f} over {defined} of {len(result.classes)} classes" if defined else ""
    text = fitting(title, BOLD_TITLE, width - left)
    figure.text(left / width, 1 - 0.1 / height, text, fontsize=10, weight="bold", color=INK, va="top")
    none = "no class has both positives and negatives"
    figure.text(left / width, 1 - 0.3 / height, of_all or none, fontsize=7.5, color=INK, va="top")


def blank_figure(width: float, height: float) -> Figure:
    """Return a white figure of this size in inches."""
    figure = Figure(figsize=(width, height), dpi=200, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _bare(axes: Axes) -> None:
    axes.tick_params(length=0, pad=3, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)


def shortened(name: object) -> str:
    """Return a name of at most 32 characters."""
    text = str(name)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "\u2026"


def plain(text: str) -> str:
    """Return `text` for matplotlib, to which a pair of dollar signs is mathematics."""
    return text.replace("$", r"\$")


def fitting(text: str, size: float, width: float) -> str:
    """Return `text`, cut short if it is wider than `width` inches."""
    kept, shown = len(text), text
    while kept > 1 and widest([plain(shown)], size) > width:
        kept -= 1
        shown = text[:kept] + "\u2026"
    return plain(shown)


def widest(texts: Sequence[str], size: float) -> float:
    """Return the width in inches of the widest text at a font size in points."""
    return max(
        (TextPath((0, 0), text, size=size).get_extents().x1 / 72 for text in texts if text.strip()),
        default=0.0,
    )
