"""Forest plots: AUROC with its interval for each class and method, and differences to a baseline."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlit.metrics.claim import Difference, p_text
from fedlit.reports.compare.joining import Joining
from fedlit.reports.compare.statistics import AurocEstimate, Statistics
from fedlit.reports.compare.styles import PAGE, SMALL, TEXT, Style, method_figure, tidy
from fedlit.tracking.figures import FAINT, INK, blank_figure, printed, wrapped

SHADE = "#f5f6f8"
TALL = 4.0
"""Height in inches above which rows are split into two panels."""
UNDEFINED = {"fontsize": SMALL, "color": FAINT, "style": "italic", "va": "center_baseline"}


def intervals_figure(numbers: Statistics, styles: Mapping[str, Style]) -> Figure:
    """Draw a forest plot: one row per class with a point and interval for each method; the mean over classes is last.

    Rows that would be taller than 4 inches are split into two panels with the same scale. A method without a value has
    no point; a row without points is marked as undefined. The right side shows the positives and negatives of a class.
    """
    count = len(numbers.scored)
    apart = (0.1 if count <= 4 else 0.075) / (step := max(0.2, 0.1 + (0.1 if count <= 4 else 0.075) * count))
    names = numbers.names
    halves = 2 if len(numbers.shared.classes) * step > TALL else 1
    rows = math.ceil(len(names) / halves)
    looks = {scored.method.name: styles[scored.method.name] for scored in numbers.scored}
    figure = method_figure(looks, 0.6 + rows * step, lines=False)
    panels = figure.subplots(1, halves, sharex=True, squeeze=False)[0]
    for panel, start in zip(panels, range(0, len(names), rows), strict=True):
        part = range(start, min(start + rows, len(names)))
        _rows(panel, names, part, rows)
        for number, (scored, style) in enumerate(zip(numbers.scored, looks.values(), strict=True)):
            for row, estimate in enumerate(scored.rows[start : start + rows]):
                _point(panel, row + (number - (count - 1) / 2) * apart, estimate, style)
        for row, i in enumerate(part):
            if all(math.isnan(scored.rows[i].value) for scored in numbers.scored):
                panel.text(0.5, row, "undefined", transform=panel.get_yaxis_transform(), ha="center", **UNDEFINED)
        counted = [i for i in part if i < len(numbers.shared.classes)]
        support = panel.secondary_yaxis("right")
        support.set_yticks([i - start for i in counted], [numbers.support.text(i) for i in counted])
        support.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
        support.spines["right"].set_visible(False)
        panel.set_title(numbers.support.unit, fontsize=SMALL, color=FAINT, loc="right", pad=3)
        panel.set_xlabel("AUROC", fontsize=8, color=INK)
    return figure


def differences_figure(numbers: Statistics, styles: Mapping[str, Style]) -> Figure:
    """Draw each method's difference to the baseline by class, one panel per method, all with the same scale.

    A point is filled if the difference is claimed, else hollow; p (Holm) and its stars are printed next to it.
    """
    methods = [against.method.name for against in numbers.against]
    figure, panels = _panels(methods, numbers.names, 2 if len(methods) == 4 else min(len(methods), 3), 0.19)
    for panel, against in zip(panels, numbers.against, strict=True):
        for row, difference in enumerate(against.rows):
            _difference(panel, row, difference, styles[against.method.name])
    figure.supxlabel(f"AUROC minus that of {printed(numbers.against[0].baseline.name)}", fontsize=8, color=INK)
    return figure


def gains_figure(joining: Joining, styles: Mapping[str, Style]) -> Figure:
    """Draw each site's gain from a method, one panel per method with the same scale; the last row is the summary.

    A point is filled if the gain is claimed.
    """
    names = [*(gain.site for gain in joining.methods[0].home), "all sites"]
    methods = [gains.method.name for gains in joining.methods]
    figure, panels = _panels(methods, names, min(len(methods), 2), 0.22)
    for panel, gains in zip(panels, joining.methods, strict=True):
        style, last = styles[gains.method.name], len(names) - 1
        for row, each in enumerate(gains.home):
            _difference(panel, row, each.gain, style)
        if (summary := gains.summary) is None:
            panel.annotate("none", (1, last), (4, 0), panel.get_yaxis_transform(), "offset points", **UNDEFINED)
        else:
            _difference(panel, last, summary.as_difference, style)
    entries = [entry for each in joining.methods for entry in (*(home.gain for home in each.home), each.summary)]
    shown = [end for entry in entries if entry for end in (entry.interval.low, entry.interval.high)]
    shown += [home.gain.value for each in joining.methods for home in each.home]
    low, high = min((end for end in shown if end < 0), default=0.0), max((end for end in shown if end > 0), default=0.0)
    panels[0].set_xlim(low - 0.06 * (high - low or 1), high + 0.06 * (high - low or 1))
    figure.supxlabel("gain in AUROC over the site's own model", fontsize=8, color=INK)
    return figure


def _panels(methods: Sequence[str], names: Sequence[str], across: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each method, whose rows of this height have the names."""
    down, width = math.ceil(len(methods) / across), PAGE if across > 1 else 0.65 * PAGE
    figure = blank_figure(width, 0.4 + down * (0.65 + height * len(names)))
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for number, (panel, method) in enumerate(zip(panels, methods, strict=False)):
        panel.set_title(wrapped(method, width / across - 1.2, TEXT), fontsize=TEXT, color=INK, loc="left", pad=12)
        _rows(panel, names, range(len(names)), len(names))
        panel.axvline(0, color=INK, linewidth=0.8, zorder=1.5)
        panel.tick_params(labelbottom=number + across >= len(methods))
        panel.annotate("p (Holm)", (1, 1), (16, 4), "axes fraction", "offset points", fontsize=SMALL, color=FAINT)
    for panel in panels[len(methods) :]:
        panel.remove()
    return figure, panels[: len(methods)]


def _rows(axes: Axes, names: Sequence[str], part: range, rows: int) -> None:
    """Write some of the names, shade every other row, and set the last name, the mean over classes, apart."""
    tidy(axes, "x")
    axes.set_ylim(rows - 0.5, -0.5)
    for row in range(0, len(part), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=SHADE, linewidth=0, zorder=0)
    axes.set_yticks(range(len(part)), [printed(names[i]) for i in part])
    axes.tick_params(axis="y", length=0, labelsize=TEXT)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    if len(names) - 1 in part:
        axes.axhline(len(part) - 1.5, color=FAINT, linewidth=0.6, zorder=1)
        axes.yaxis.get_major_ticks()[-1].label1.set_fontweight("bold")


def _difference(axes: Axes, row: int, difference: Difference, style: Style) -> None:
    def annotate(points: float, text: str, **options: object) -> None:
        at = axes.get_yaxis_transform(), "offset points"
        axes.annotate(text, (1, row), (points, 0), *at, fontsize=SMALL, va="center_baseline", **options)

    if math.isnan(difference.value):
        annotate(4, "undefined", color=FAINT, style="italic")
        return
    _point(axes, row, difference, style, filled=difference.claimed)
    if not math.isnan(difference.p_holm):
        ink = INK if difference.claimed else FAINT
        annotate(36, p_text(difference.p_holm), color=ink, ha="right")
        annotate(39, difference.stars if difference.claimed else "", color=ink)


def _point(axes: Axes, y: float, number: AurocEstimate | Difference, style: Style, filled: bool = True) -> None:
    """Draw a value and its interval; either may be undefined."""
    low, high = number.interval.low, number.interval.high
    # The interval of an AUROC is not symmetric, so its middle is not the value.
    axes.errorbar((low + high) / 2, y, xerr=(high - low) / 2, fmt="none", ecolor=style.colour, elinewidth=1.1)
    look = style.drawn(4.0 if filled else 3.7) | {"linestyle": "none"}
    hollow = {} if filled else {"markerfacecolor": "white", "markeredgecolor": style.colour, "markeredgewidth": 0.9}
    axes.plot([number.value], [y], zorder=4, **look | hollow)
