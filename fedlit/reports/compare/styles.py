"""How a method looks in every figure and table of a comparison, and how figures are written."""

import io
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from fedlit.reports.figures import COLOURS, DASHES, FAINT, INK, plain, shortened, widest

COLUMN = 3.5
PAGE = 7.2
TEXT = 7.5
SMALL = 6.5
GRID = "#e4e4e4"
# Okabe and Ito's, then two of Tol's muted colours: unlike the others in lightness or hue to every kind of colour vision.
PALETTE = (*COLOURS, "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
# These fill less of their box than a circle does.
LARGER = {"P": 1.15, "X": 1.15, "*": 1.5, "^": 1.1, "v": 1.1, "<": 1.1, ">": 1.1, "D": 0.9}
Dashes = str | tuple[float, tuple[float, ...]]
Place = Callable[[float, float, float, float], Axes]


@dataclass(frozen=True)
class Style:
    """How a method is drawn. Any two methods differ in at least two of the three, so colour is never the only cue.

    Attributes:
        colour: `#rrggbb`.
        line: matplotlib's line style: "-", or (offset, (on, off, ...)) in line widths.
        marker: matplotlib's marker.
    """

    colour: str
    line: Dashes
    marker: str

    def marker_size(self, points: float) -> float:
        """Return the size at which this marker looks as large as a circle of `points`."""
        return points * LARGER.get(self.marker, 1.0)


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return each method's look: the n-th method looks the same however many follow it.

    Ten colours; after them the colours come again with other lines and markers.

    Raises:
        ValueError: If a method is named twice.
    """
    repeated = [method for number, method in enumerate(methods) if method in methods[:number]]
    if repeated:
        raise ValueError(f"Expected each method once, found {repeated[0]!r} twice.")
    chosen = {}
    for number, method in enumerate(methods):
        turn = number + number // len(PALETTE)
        chosen[method] = Style(PALETTE[number % len(PALETTE)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
    return chosen


def svg(figure: Figure) -> str:
    """Return the figure as an SVG document: text stays text, and equal figures give equal bytes.

    Not for several threads at once: matplotlib takes these settings from a global.
    """
    document = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedlit"}):
        figure.savefig(document, format="svg", metadata=nothing)
    return document.getvalue()


def save(figure: Figure, path: pathlib.Path | str) -> pathlib.Path:
    """Write the figure as `.svg` (see `svg`), `.pdf` with embedded TrueType fonts and no date, or `.png`.

    Raises:
        ValueError: If the file's name ends otherwise.
    """
    path = pathlib.Path(path)
    match path.suffix.lower():
        case ".svg":
            path.write_text(svg(figure), encoding="utf-8")
        case ".pdf":
            with rc_context({"pdf.fonttype": 42}):
                figure.savefig(path, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
        case ".png":
            figure.savefig(path, format="png", dpi=300)
        case _:
            raise ValueError(f"Expected a figure's name to end in .svg, .pdf or .png, found {path.name!r}.")
    return path


def swatch(style: Style) -> str:
    """Return a method's line and marker as a small SVG element for a table; the name beside it speaks for it."""
    shape = MarkerStyle(style.marker)
    size = style.marker_size(7.5)
    outline = shape.get_path().transformed(shape.get_transform())
    middle = Affine2D().scale(size, -size).translate(18, 8)
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    steps = []
    for points, code in outline.transformed(middle).iter_segments():
        steps.append(letters[code] + ("" if code == Path.CLOSEPOLY else " ".join(f"{point:.4g}" for point in points)))
    # matplotlib counts dashes in line widths.
    dashes = (
        "" if style.line == "-" else f' stroke-dasharray="{" ".join(f"{2 * length:g}" for length in style.line[1])}"'
    )
    return (
        f'<svg class="swatch" viewBox="0 0 36 16" aria-hidden="true">'
        f'<path d="M2 8H34" stroke="{style.colour}" stroke-width="2" fill="none"{dashes}/>'
        f'<path d="{"".join(steps)}" fill="{style.colour}" stroke="#ffffff" stroke-width=".8"/></svg>'
    )


def require_styles(methods: Sequence[str], styles: Mapping[str, Style]) -> None:
    """Raise a ValueError if there is no method or one without a style."""
    if not methods:
        raise ValueError("Expected at least one method to draw, found none.")
    missing = [method for method in methods if method not in styles]
    if missing:
        raise ValueError(f"Expected a style for each method, found none for {missing[0]!r} among {sorted(styles)}.")


def named(name: object) -> str:
    """Return a method's or class's name as figures print it: one line, at most 32 characters, no mathematics."""
    return plain(shortened(" ".join(str(name).split())))


def placer(figure: Figure) -> Place:
    """Return a function that adds axes at (left, bottom, width, height) in inches."""
    across, up = figure.get_size_inches()

    def place(left: float, bottom: float, width: float, height: float) -> Axes:
        return figure.add_axes((left / across, bottom / up, width / across, height / up))

    return place


def tidy(axes: Axes, grid: str = "y") -> None:
    """Leave two thin spines, small ticks and a faint grid along one axis."""
    axes.grid(axis=grid, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7, length=2.5, width=0.5, color=FAINT, labelcolor=INK, pad=2)
    axes.tick_params(which="minor", length=1.5, width=0.4, color=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=FAINT, linewidth=0.6)


class Legend:
    """Methods with line and marker, in columns that fill a width.

    Attributes:
        height: inches that it takes.
    """

    KEY, GAP, LINE = 0.36, 0.2, 0.16

    def __init__(self, styles: Mapping[str, Style], methods: Sequence[str], width: float) -> None:
        self.styles, self.methods = styles, list(methods)
        cells = [self.KEY + widest([named(method)], TEXT) + self.GAP for method in methods]
        for across in range(len(cells), 0, -1):
            rows = math.ceil(len(cells) / across)
            self.widths = [max(cells[column::across]) for column in range(across)]
            # As few columns as the rows need, so that the last row is not left short.
            if sum(self.widths) - self.GAP <= width and across == math.ceil(len(cells) / rows):
                break
        self.height = self.LINE * rows

    def draw(self, place: Place, left: float, bottom: float, line: bool = True) -> None:
        """Draw it with its lower left corner at (left, bottom) inches, with markers alone if not `line`."""
        axes = place(left, bottom, sum(self.widths), self.height)
        axes.set(xlim=(0, sum(self.widths)), ylim=(self.height, 0))
        axes.set_axis_off()
        for number, method in enumerate(self.methods):
            row, column = divmod(number, len(self.widths))
            x = sum(self.widths[:column])
            entry(axes, x, (row + 0.5) * self.LINE, method, self.styles[method], line)


def entry(axes: Axes, x: float, y: float, method: str, style: Style, line: bool = True) -> None:
    """Draw a method's line, marker and name on axes whose x is in inches, from (x, y) on."""
    start, end = (x, x + 0.28) if line else (x + 0.14, x + 0.14)
    key = Line2D([start, (start + end) / 2, end], [y, y, y], color=style.colour, linestyle=style.line, linewidth=1.3)
    key.set(marker=style.marker, markevery=[1], markersize=style.marker_size(4), clip_on=False)
    key.set(markeredgecolor="white", markeredgewidth=0.4)
    axes.add_line(key)
    gap = 0.34 if line else 0.22
    axes.text(x + gap, y, named(method), fontsize=TEXT, color=INK, va="center_baseline")
