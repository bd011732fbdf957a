"""Forest plots: an estimate with its interval for each class and method, and differences to a baseline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlit.metrics.paired import ALPHA
from fedlit.reports.compare.styles import (
    COLUMN,
    PAGE,
    SMALL,
    TEXT,
    Legend,
    Place,
    Style,
    entry,
    named,
    placer,
    require_styles,
    tidy,
)
from fedlit.reports.figures import FAINT, INK, blank_figure, widest

MACRO = "mean of classes"
SHADE = "#f5f6f8"
APART = 0.09
MANY = 4
TALL, HALVED = 4.0, 6.0
UNDEFINED = {"fontsize": SMALL, "color": FAINT, "style": "italic", "va": "center_baseline"}


@dataclass(frozen=True)
class Point:
    """A number and its confidence interval; NaN where undefined.

    Attributes:
        value: AUROC, or another metric.
        low: Lower end; NaN where there is no interval.
        high: Upper end.
    """

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class TestedPoint(Point):
    """A method's metric minus the baseline's, its interval and its p.

    Attributes:
        p: Corrected for the number of classes; NaN where there is no test.
    """

    p: float = math.nan

    @property
    def stars(self) -> str:
        """``***`` below 0.001, ``**`` below 0.01, ``*`` below 0.05, else nothing."""
        return next((mark for bound, mark in ((0.001, "***"), (0.01, "**"), (ALPHA, "*")) if self.p < bound), "")

    @property
    def p_text(self) -> str:
        """p as printed, nothing where there is no test."""
        return "" if math.isnan(self.p) else "<0.001" if self.p < 0.001 else f"{self.p:.3f}"


@dataclass(frozen=True)
class Support:
    """Test images of a class.

    Attributes:
        positives: Labelled positive.
        negatives: Labelled negative.
    """

    positives: int
    negatives: int

    def __str__(self) -> str:
        return f"{self.positives:,}+ / {self.negatives:,}\u2212"


Points = Mapping[str, Mapping[str, Point]]
TestedPoints = Mapping[str, Mapping[str, TestedPoint]]


def intervals_figure(
    estimates: Points,
    classes: Sequence[str],
    styles: Mapping[str, Style],
    *,
    macro: Mapping[str, Point] | None = None,
    macro_label: str = MACRO,
    support: Mapping[str, Support] | None = None,
    x_label: str = "AUROC",
    width: float | None = None,
) -> Figure:
    """Draw a forest plot: a row a class, in it a point with its interval for each method, from the first on downwards.

    Classes that would take more than 4 inches stand in two halves beside each other where there are two columns, on one
    scale. A method without a value has no point; a row without any is marked as undefined.

    Args:
        estimates: By method, then by class.
        classes: Rows from above.
        styles: Of all methods.
        macro: Each method's mean over classes: a row of its own below the others.
        macro_label: Name of that row, such as "mean of 12 of 14 classes".
        support: Positives and negatives of each class, printed to the right.
        x_label: What is estimated.
        width: Of the figure, inches; by default one column, or two for more than four methods.

    Raises:
        ValueError: Without any method or class, or if a method has no style.
    """
    methods = list(estimates)
    require_styles(methods, styles)
    if not classes:
        raise ValueError("Expected at least one class to draw, found none.")
    apart = 0.1 if len(methods) <= MANY else 0.075
    step = max(0.2, 0.1 + apart * len(methods))
    width = width or (PAGE if len(methods) > MANY else COLUMN)
    half = math.ceil(len(classes) / 2)
    # The mean stands under the second half, which is never the longer one.
    halves = [classes[:half], classes[half:]] if width > HALVED and len(classes) * step > TALL else [classes]
    blocks = [_Rows(part, macro_label if macro is not None and part is halves[-1] else "", step) for part in halves]
    left, height = max(rows.left for rows in blocks), max(rows.height for rows in blocks)
    texts = {name: str(support[name]) for name in classes if support and name in support}
    right = widest([*texts.values()], SMALL) + 0.16 if texts else 0.08
    legend = Legend(styles, methods, width - 0.1)
    top, bottom = legend.height + 0.08 + (0.17 if texts else 0.02), 0.42
    figure = blank_figure(width, top + height + bottom)
    place = placer(figure)
    gap = 0.14
    block = (width - gap * (len(blocks) - 1)) / len(blocks)
    for number, (rows, part) in enumerate(zip(blocks, halves, strict=True)):
        x, y = number * (block + gap), bottom + height - rows.height
        axes = place(x + left, y, block - left - right, rows.height)
        rows.prepare(axes)
        found = [[estimates[method].get(name) for method in methods] for name in part]
        found += [[macro.get(method) for method in methods]] if len(rows.names) > len(part) else []
        for row, points in enumerate(found):
            _write_row(axes, rows.middle(row), points, [styles[method] for method in methods], apart)
        _limit(axes, _ends(estimates, macro), 0.04, 6, block - left - right)
        axes.set_xlabel(x_label, fontsize=8, color=INK)
        if texts:
            _write_support(place(x + block - right, y, right, rows.height), rows, [texts.get(n, "") for n in part])
    legend.draw(place, 0.05, figure.get_figheight() - legend.height - 0.03, line=False)
    return figure


def differences_figure(
    differences: TestedPoints,
    classes: Sequence[str],
    styles: Mapping[str, Style],
    baseline: str,
    *,
    macro: Mapping[str, TestedPoint] | None = None,
    macro_label: str = MACRO,
    metric: str = "AUROC",
    p_label: str = "p (Holm)",
    across: int | None = None,
    width: float | None = None,
) -> Figure:
    """Draw each method's difference to the baseline by class, a panel a method, all on one scale.

    A point is filled where p is below 0.05, hollow elsewhere; p and its stars stand beside it.

    Args:
        differences: Method minus baseline, by method, then by class; the baseline itself is not among them.
        classes: Rows from above.
        styles: Of all methods.
        baseline: Its name, for the axis.
        macro: The difference of each method's mean over classes: a row of its own below the others.
        macro_label: Name of that row.
        metric: What the differences are of.
        p_label: Head of the p column.
        across: Panels beside each other; by default 1, or up to 3 in a figure of two columns.
        width: Of the figure, inches; by default one column for one panel, else two.

    Raises:
        ValueError: Without any method or class, or if a method has no style.
    """
    methods = list(differences)
    require_styles(methods, styles)
    across = across or min(len(methods), 3 if len(methods) != 4 else 2)
    width = width or (COLUMN if across == 1 else PAGE)
    down = math.ceil(len(methods) / across)
    rows = _Rows(classes, macro_label if macro is not None else "", 0.19)
    side, gap, bottom, top = widest(["<0.001 ***"], SMALL) + 0.14, 0.14, 0.42, 0.4
    panel = (width - rows.left - 0.06 - (across - 1) * gap) / across - side
    block = top + rows.height + 0.2
    figure = blank_figure(width, down * block + bottom - 0.2)
    place = placer(figure)
    ends = _ends(differences, macro)
    for number, method in enumerate(methods):
        line, column = divmod(number, across)
        x = rows.left + column * (panel + side + gap)
        y = figure.get_figheight() - line * block - top - rows.height
        axes = place(x, y, panel, rows.height)
        rows.prepare(axes, names=column == 0)
        axes.axvline(0, color=INK, linewidth=0.8, zorder=1.5)
        found = [differences[method].get(name) for name in classes]
        found += [macro.get(method)] if macro is not None else []
        for row, difference in enumerate(found):
            _write_difference(axes, rows.middle(row), difference, styles[method], panel, side)
        _limit(axes, [*ends, 0.0], 0.06, 4, panel)
        axes.tick_params(labelbottom=number + across >= len(methods))
        _head(place, x, y + rows.height + 0.06, panel + side, method, styles[method], p_label)
    last = len(methods) - (down - 1) * across
    middle = (rows.left + (last * (panel + side + gap) - side - gap) / 2) / width
    text = f"{metric} minus that of {named(baseline)}"
    figure.text(middle, 0.08 / figure.get_figheight(), text, fontsize=8, color=INK, ha="center")
    return figure


class _Rows:
    """Rows of classes and one of their mean, in inches from above.

    Attributes:
        height: of all of them.
        left: room for their names.
    """

    def __init__(self, classes: Sequence[str], macro: str, step: float) -> None:
        if not classes:
            raise ValueError("Expected at least one class to draw, found none.")
        self.names = [named(name) for name in classes] + [named(macro)] * bool(macro)
        self.classes, self.step = len(classes), step
        self.height = len(self.names) * step + APART * bool(macro)
        # The mean is bold, which is wider.
        self.left = max(widest(self.names[: self.classes], TEXT), 1.17 * widest([named(macro)], TEXT)) + 0.14

    def middle(self, row: int) -> float:
        return (row + 0.5) * self.step + APART * (row >= self.classes)

    def prepare(self, axes: Axes, names: bool = True) -> None:
        """Shade every other row, set the mean apart and write the names."""
        tidy(axes, "x")
        axes.set_ylim(self.height, 0)
        for row in range(0, self.classes, 2):
            axes.axhspan(row * self.step, (row + 1) * self.step, color=SHADE, linewidth=0, zorder=0)
        if len(self.names) > self.classes:
            axes.axhline(self.classes * self.step + APART / 2, color=FAINT, linewidth=0.6, zorder=1)
        axes.set_yticks([self.middle(row) for row in range(len(self.names))], self.names if names else [])
        axes.tick_params(axis="y", length=0, labelsize=TEXT)
        axes.spines["left"].set_visible(False)
        for label in axes.get_yticklabels()[self.classes :]:
            label.set_fontweight("bold")


def _write_row(
    axes: Axes, middle: float, points: Sequence[Point | None], styles: Sequence[Style], apart: float
) -> None:
    if not any(_defined(point) for point in points):
        axes.text(0.5, middle, "undefined", transform=axes.get_yaxis_transform(), ha="center", **UNDEFINED)
    for number, (point, style) in enumerate(zip(points, styles, strict=True)):
        if _defined(point):
            y = middle + (number - (len(points) - 1) / 2) * apart
            _write_point(axes, y, point, style, 40 * apart if apart > 0.08 else 3.6, filled=True)


def _write_support(axes: Axes, rows: _Rows, texts: Sequence[str]) -> None:
    """Write on axes in inches, as rows are."""
    right = axes.figure.get_figwidth() * axes.get_position().width
    axes.set(xlim=(0, right), ylim=(rows.height, 0))
    axes.set_axis_off()
    axes.text(right - 0.08, -0.05, "support", fontsize=SMALL, color=FAINT, ha="right", va="bottom")
    for row, text in enumerate(texts):
        axes.text(right - 0.08, rows.middle(row), text, fontsize=SMALL, color=INK, ha="right", va="center_baseline")


def _write_difference(
    axes: Axes, y: float, difference: TestedPoint | None, style: Style, panel: float, side: float
) -> None:
    beside = axes.get_yaxis_transform()
    if not _defined(difference):
        axes.text(1 + side / panel, y, "undefined", transform=beside, ha="right", **UNDEFINED)
        return
    _write_point(axes, y, difference, style, 4.2 if difference.stars else 3.7, filled=bool(difference.stars))
    text = {"fontsize": SMALL, "color": INK if difference.stars else FAINT, "va": "center_baseline"}
    stars = widest([" ***"], SMALL)
    axes.text(1 + (side - stars - 0.02) / panel, y, difference.p_text, transform=beside, ha="right", **text)
    axes.text(1 + (side - stars + 0.02) / panel, y, difference.stars, transform=beside, ha="left", **text)


def _write_point(axes: Axes, y: float, estimate: Point, style: Style, size: float, filled: bool) -> None:
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        axes.plot([estimate.low, estimate.high], [y, y], color=style.colour, linewidth=1.1, solid_capstyle="butt")
    face, edge = (style.colour, "white") if filled else ("white", style.colour)
    axes.plot(
        [estimate.value],
        [y],
        linestyle="none",
        color=style.colour,
        marker=style.marker,
        markersize=style.marker_size(size),
        markerfacecolor=face,
        markeredgecolor=edge,
        markeredgewidth=0.4 if filled else 0.9,
        zorder=4,
    )


def _head(place: Place, x: float, y: float, width: float, method: str, style: Style, p_label: str) -> None:
    axes = place(x, y, width, 0.3)
    axes.set(xlim=(0, width), ylim=(0, 0.3))
    axes.set_axis_off()
    entry(axes, -0.14, 0.22, method, style, line=False)
    stars = widest([" ***"], SMALL)
    axes.text(width - stars - 0.02, 0.02, p_label, fontsize=SMALL, color=FAINT, ha="right")


def _ends(estimates: Points, macro: Mapping[str, Point] | None) -> list[float]:
    """Return every value and end of an interval that is to be in sight."""
    return [end for one in _all(estimates, macro) for end in (one.value, one.low, one.high) if math.isfinite(end)]


def _all(estimates: Points, macro: Mapping[str, Point] | None) -> Iterator[Point]:
    for by_class in estimates.values():
        yield from by_class.values()
    yield from (macro or {}).values()


def _limit(axes: Axes, ends: Sequence[float], margin: float, ticks: int = 6, width: float = 2.0) -> None:
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    reach = max(high - low, 0.02)
    axes.set_xlim(low - margin * reach, high + margin * reach)
    axes.xaxis.set_major_locator(MaxNLocator(min(ticks, max(2, int(width / 0.33))), steps=[1, 2, 5, 10]))


def _defined(estimate: Point | None) -> bool:
    return estimate is not None and math.isfinite(estimate.value)
