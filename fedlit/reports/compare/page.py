"""Report page: one HTML file from one template and one style sheet, without scripts, network or fonts."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path as Outline
from matplotlib.transforms import Affine2D

from fedlit import __version__
from fedlit.core.errors import ConfigError
from fedlit.metrics.intervals import FEWEST, LEFT, MIN_PATIENTS
from fedlit.reports.compare.comparison import Comparison
from fedlit.reports.compare.methods import ALONE
from fedlit.reports.compare.styles import LARGER, Style, save, svg
from fedlit.reports.table import ABSENT, Table

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
    tables: Mapping[str, Sequence[Table]],
    shared: Table,
    partitions: dict[bytes, str],
) -> str:
    """Return the page as HTML; equal content gives equal bytes.

    Looks are by method, charts and tables by the id of their section; ``shared`` has the settings of all methods, and
    partitions are figures as PNG with the names of their runs.
    """
    return template("compare/report.html.jinja").render(
        comparison=comparison, numbers=comparison.statistics, methods=comparison.methods, looks=looks, charts=charts,
        partitions=partitions, tables=tables, shared=shared, absent=ABSENT, alone=ALONE,
        version=__version__, fewest=MIN_PATIENTS, narrowest=FEWEST, furthest=LEFT,
    )  # fmt: skip


def template(name: str) -> Template:
    """Return a template of the reports by its path; values are escaped if it is a template of HTML."""
    environment = Environment(
        loader=PackageLoader("fedlit.reports", ""), autoescape=".html" in name, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "base64": lambda data: base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode(),
        "cell": lambda value: escape(" ".join(str(value).split()), quote=False).replace("|", r"\|"),
        "inline": inline_svg, "marker": marker_path,
    }  # fmt: skip
    return environment.get_template(name)


def report_folder(folder: Path, charts: Iterable[Chart]) -> Path:
    """Create the folder of a report, and write its charts as SVG and PDF; return the file of its page.

    Raises:
        ConfigError: The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--output {folder}: expected a folder for the report, which cannot be created: {error}; choose another"
        ) from error
    for chart in charts:
        (folder / f"{chart.name}.svg").write_text(chart.document, encoding="utf-8")
        chart.figure.set_layout_engine("none")  # keeps the places, whose computation takes longer than drawing
        save(chart.figure, folder / f"{chart.name}.pdf")
    return folder / "report.html"


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
    codes = (Outline.MOVETO, Outline.LINETO, Outline.CURVE3, Outline.CURVE4, Outline.CLOSEPOLY)
    letters = dict(zip(codes, "MLQCZ", strict=True))
    return "".join(
        letters[code] + ("" if code == Outline.CLOSEPOLY else " ".join(f"{point:.4g}" for point in points))
        for points, code in outline.iter_segments()
    )
