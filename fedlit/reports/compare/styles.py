"""Looks of methods in all figures and tables of a comparison, and writing of figures."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlit.tracking.figures import COLOURS, DASHES, FAINT, INK, LETTER, blank_figure, printed

PAGE = 7.2
TEXT = 7.5
SMALL = 6.5
GRID = "#e4e4e4"
# Okabe and Ito's colours, then two of Tol's muted ones, which differ from them in lightness or hue for all kinds of
# colour vision.
PALETTE = (*COLOURS, "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
# These markers fill less of their box than a circle does.
LARGER = {"P": 1.15, "X": 1.15, "*": 1.5, "^": 1.1, "v": 1.1, "<": 1.1, ">": 1.1, "D": 0.9}


@dataclass(frozen=True)
class Style:
    """Look of a method. Any two methods differ in at least two of the fields, so colour is never the only cue."""

    colour: str  # Colour as ``#rrggbb``.
    # Line style of matplotlib: "-", or (offset, (on, off, ...)) in line widths.
    line: str | tuple[float, tuple[float, ...]]
    marker: str  # Marker of matplotlib.

    def drawn(self, size: float) -> dict[str, object]:
        """Return options of ``plot`` for a line whose marker looks as large as a circle of this size in points."""
        marker = {"marker": self.marker, "markersize": size * LARGER.get(self.marker, 1.0)}
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.4}
        return {"color": self.colour, "linestyle": self.line, "linewidth": 1.3} | marker | edge


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return the methods' looks; the look of the n-th method does not depend on those that follow it.

    After ten methods, the ten colours are used again with other lines and markers.
    """
    looks = {}
    for number, method in enumerate(methods):
        turn = number + number // len(PALETTE)
        looks[method] = Style(PALETTE[number % len(PALETTE)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
    return looks


def method_figure(
    styles: Mapping[str, Style], height: float, layout: str = "constrained", lines: bool = True
) -> Figure:
    """Return a blank figure, one page wide, with a legend if there are several methods.

    The height is that below the legend, in inches; the layout is ``compressed`` for square panels. Without ``lines``,
    the legend shows only markers.
    """
    names = [printed(method) for method in styles]
    if len(names) == 1:
        return blank_figure(PAGE, height, layout)
    columns = min(len(names), max(1, int(PAGE / (0.55 + TEXT * LETTER * max(map(len, names))))))
    rows = math.ceil(len(names) / columns)
    figure = blank_figure(PAGE, height + 0.17 * rows, layout)
    bare = {} if lines else {"linestyle": "none"}
    looks = [style.drawn(4) | bare for style in styles.values()]
    keys = [Line2D([], [], label=name, **look) for name, look in zip(names, looks, strict=True)]
    # Use as few columns as the rows need, so that the last row is not short.
    columns = math.ceil(len(names) / rows)
    look = {"frameon": False, "fontsize": TEXT, "labelcolor": INK, "handlelength": 3 if lines else 1, "borderpad": 0}
    figure.legend(handles=keys, loc="outside upper left", ncols=columns, **look)
    return figure


def tidy(axes: Axes, grid: str = "y") -> None:
    """Reduce axes to two thin spines, small ticks and a faint grid along one axis."""
    axes.grid(axis=grid, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7, length=2.5, width=0.5, color=FAINT, labelcolor=INK, pad=2)
    axes.tick_params(which="minor", length=1.5, width=0.4, color=FAINT, labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=FAINT, linewidth=0.6)


def svg(figure: Figure) -> str:
    """Return the figure as an SVG document; text stays text, and equal figures give equal bytes.

    It is not thread-safe, because matplotlib reads these settings from a global.
    """
    document = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedlit"}):
        figure.savefig(document, format="svg", metadata=nothing)
    return document.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as `.svg` (see `svg`), `.pdf` with embedded TrueType fonts and no date, or `.png`."""
    if path.suffix == ".svg":
        path.write_text(svg(figure), encoding="utf-8")
    elif path.suffix == ".pdf":
        with rc_context({"pdf.fonttype": 42}):
            figure.savefig(path, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    else:
        figure.savefig(path, dpi=300)
    return path
