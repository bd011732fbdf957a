"""Report page: one HTML file from one template and one style sheet, without scripts, network or fonts."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from fedlit import __version__
from fedlit.metrics.intervals import FEWEST, LEFT, MIN_PATIENTS
from fedlit.metrics.paired import p_text
from fedlit.reports.compare.comparison import Comparison
from fedlit.reports.compare.cost import mean_cost
from fedlit.reports.compare.methods import ABSENT, differences
from fedlit.reports.compare.statistics import DELONG
from fedlit.reports.compare.styles import LARGER, Style, svg
from fedlit.reports.compare.words import ALONE, cost_row, interval_text, number, short

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure of the page."""

    name: str  # Name of its files, without a suffix.
    figure: Figure
    caption: str  # Text with the meaning of bands, bars and points.
    alt: str  # Text for screen readers.

    @cached_property
    def document(self) -> str:
        """Return the figure as SVG, drawn only once, as a second layout may differ in the last digits."""
        return svg(self.figure)


def page(
    comparison: Comparison,
    looks: Mapping[str, Style],
    charts: Mapping[str, Sequence[Chart]],
    partitions: dict[bytes, str],
) -> str:
    """Return the page as HTML; equal content gives equal bytes.

    Args:
        comparison: Methods, numbers and notes.
        looks: Looks of the methods by name.
        charts: Charts by the id of their section.
        partitions: Figures of partitions as PNG, each with the names of its runs.
    """
    spaces = {"trim_blocks": True, "lstrip_blocks": True}
    loader = PackageLoader(__package__, "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **spaces)
    environment.filters |= {
        "base64": lambda data: base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode(),
        "cost_row": lambda runs: cost_row(mean_cost(runs)),
        "marker": marker_path,
        "number": number,
        "p": p_text,
        "short": short,
        "inline": inline_svg,
    }
    return environment.get_template("report.html.jinja").render(
        comparison=comparison, numbers=comparison.statistics, methods=comparison.methods, looks=looks, charts=charts,
        partitions=partitions, differing=differences(comparison.methods), interval=interval_text, delong=DELONG,
        absent=ABSENT, alone=ALONE, version=__version__, fewest=MIN_PATIENTS, narrowest=FEWEST, furthest=LEFT,
    )  # fmt: skip


def inline_svg(document: str, prefix: str, alt: str) -> Markup:
    """Return matplotlib's SVG document as an element of a page, with a text for screen readers.

    Ids, which are equal in all figures, get a prefix that is unique in the page. The global style is left out.
    """
    root = ElementTree.fromstring(document)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}style", f"{{{SVG}}}metadata"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        for name, value in list(element.attrib.items()):
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif name == f"{{{XLINK}}}href":
                # HTML has no namespaces: SVG 2 uses a plain href.
                del element.attrib[name]
                element.set("href", f"#{prefix}-{value.removeprefix('#')}" if value.startswith("#") else value)
            elif "url(#" in value:
                element.set(name, value.replace("url(#", f"url(#{prefix}-"))
    size = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": size, "role": "img", "aria-label": alt})
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=True))


def marker_path(marker: str) -> str:
    """Return the outline of a marker as the path of an SVG element of 36 x 16 units."""
    shape = MarkerStyle(marker)
    size = 7.5 * LARGER.get(marker, 1.0)
    outline = shape.get_path().transformed(shape.get_transform() + Affine2D().scale(size, -size).translate(18, 8))
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    return "".join(
        letters[code] + ("" if code == Path.CLOSEPOLY else " ".join(f"{point:.4g}" for point in points))
        for points, code in outline.iter_segments()
    )
