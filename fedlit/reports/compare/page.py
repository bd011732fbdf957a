"""A report in one HTML file: no script, no network, no font of its own; readable on paper, on a phone and in the dark."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Protocol
from xml.etree import ElementTree

from matplotlib.figure import Figure

from fedlit.reports.compare.page_style import CSS
from fedlit.reports.compare.styles import Style, svg, swatch

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"


class Ids:
    """Hands out ids that are unique in the page."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """Return an id that begins as `name` does."""
        base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part"
        number, found = 1, base
        while found in self._taken:
            number += 1
            found = f"{base}-{number}"
        self._taken.add(found)
        return found


class Block(Protocol):
    """A part of a section."""

    def html(self, ids: Ids) -> str:
        """Return it as HTML."""


@dataclass(frozen=True)
class Paragraph:
    """Plain text.

    Attributes:
        text: Printed as it is; blank lines separate paragraphs.
    """

    text: str

    def html(self, ids: Ids) -> str:
        return "".join(f"<p>{escape(part.strip())}</p>\n" for part in re.split(r"\n\s*\n", self.text) if part.strip())


@dataclass(frozen=True)
class Note:
    """Something that a reader must not miss, such as runs that were left out.

    Attributes:
        text: Plain text.
        label: One or two words before it.
    """

    text: str
    label: str = "Note"

    def html(self, ids: Ids) -> str:
        return f'<p class="note"><strong>{escape(self.label)}</strong> {escape(self.text)}</p>\n'


@dataclass(frozen=True)
class Facts:
    """Names and values, such as test set, classes and seeds.

    Attributes:
        items: (name, value) in order.
    """

    items: Sequence[tuple[str, str]]

    def html(self, ids: Ids) -> str:
        rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>\n" for name, value in self.items)
        return f'<dl class="facts">\n{rows}</dl>\n'


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: Plain text.
        strong: Printed bold, as the best of its kind.
        method: Its line and marker are drawn before the text.
    """

    text: str
    strong: bool = False
    method: Style | None = None

    def html(self) -> str:
        text = f"<strong>{escape(self.text)}</strong>" if self.strong else escape(self.text)
        return f"{swatch(self.method)} {text}" if self.method else text


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        head: Of the columns.
        rows: Cells of each row, as many as the head has; a string is a cell of plain text.
        caption: Above the table.
        texts: Numbers of the columns that hold text, which is aligned left; the others hold numbers, aligned right.
        styles: A cell of the head or of the first column that is a method's name gets its line and marker.
        summary: Number of rows at the end that are set apart, such as means.
        folded: Shown after a click on the caption only; printed always.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    texts: Sequence[int] = (0,)
    styles: Mapping[str, Style] = field(default_factory=dict)
    summary: int = 0
    folded: bool = False

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.head):
                raise ValueError(
                    f"Expected {len(self.head)} cells in each row, as the head has, found {len(row)} in row {number}."
                )

    def html(self, ids: Ids) -> str:
        head = "".join(
            f'<th scope="col"{self._kind(column)}>{self._cell(name, True).html()}</th>'
            for column, name in enumerate(self.head)
        )
        body = self.rows[: len(self.rows) - self.summary]
        foot = self.rows[len(self.rows) - self.summary :]
        caption = f"<caption>{escape(self.caption)}</caption>\n" if self.caption and not self.folded else ""
        label = escape(self.caption or "table")
        table = (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">\n<table>\n{caption}'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{self._lines(body)}</tbody>\n"
            + (f"<tfoot>\n{self._lines(foot)}</tfoot>\n" if foot else "")
            + "</table>\n</div>\n"
        )
        return f"<details>\n<summary>{label}</summary>\n{table}</details>\n" if self.folded else table

    def _lines(self, rows: Iterable[Sequence[Cell | str]]) -> str:
        lines = []
        for name, *values in rows:
            cells = "".join(
                f"<td{self._kind(column)}>{self._cell(value, False).html()}</td>"
                for column, value in enumerate(values, 1)
            )
            lines.append(f'<tr><th scope="row">{self._cell(name, True).html()}</th>{cells}</tr>\n')
        return "".join(lines)

    def _cell(self, value: Cell | str, names_method: bool) -> Cell:
        cell = value if isinstance(value, Cell) else Cell(value)
        if names_method and cell.method is None and cell.text in self.styles:
            return Cell(cell.text, cell.strong, self.styles[cell.text])
        return cell

    def _kind(self, column: int) -> str:
        return ' class="text"' if column in self.texts else ""


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure as SVG, with a link that saves it.

    Attributes:
        figure: Drawn by `fedlit.reports.compare.figures`, or any other of matplotlib's.
        name: Of the file, without its suffix.
        caption: What is shown and what bands, bars and stars mean.
        alt: What there is to be seen, for those who cannot see it.
    """

    figure: Figure
    name: str
    caption: str
    alt: str

    def html(self, ids: Ids) -> str:
        document = svg(self.figure)
        width = self.figure.get_figwidth()
        inline = inline_svg(document, ids.of(f"chart {self.name}"), self.alt)
        data = base64.b64encode(document.encode()).decode()
        link = _download(f"data:image/svg+xml;base64,{data}", f"{self.name}.svg", "SVG")
        return _figure(f'<div class="chart" style="--w:{width:.3g}in">{inline}</div>', self.caption, link)


@dataclass(frozen=True)
class Picture:
    """A PNG, such as a run's partition.

    Attributes:
        png: Bytes of the file.
        name: Of the file, without its suffix.
        caption: Below it.
        alt: What there is to be seen, for those who cannot see it.
    """

    png: bytes
    name: str
    caption: str
    alt: str

    def html(self, ids: Ids) -> str:
        data = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        link = _download(data, f"{self.name}.png", "PNG")
        return _figure(f'<div class="chart"><img src="{data}" alt="{escape(self.alt)}"></div>', self.caption, link)


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its table of contents.

    Attributes:
        title: Plain text.
        blocks: From above.
    """

    title: str
    blocks: Sequence[Block]

    def html(self, ids: Ids, anchor: str) -> str:
        body = "".join(block.html(ids) for block in self.blocks)
        return f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{escape(self.title)}</h2>\n{body}</section>\n'


def page(title: str, sections: Sequence[Section], lead: Sequence[Block] = (), footer: str = "") -> str:
    """Return the page as HTML: equal content gives equal bytes.

    Args:
        title: Of the page.
        sections: From above, each in the table of contents.
        lead: Blocks between the title and the first section.
        footer: A line at the end, such as the program's version.
    """
    ids = Ids()
    anchors = [ids.of(section.title) for section in sections]
    contents = "".join(
        f'<li><a href="#{anchor}">{escape(section.title)}</a></li>\n'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    before = "".join(block.html(ids) for block in lead)
    body = "".join(section.html(ids, anchor) for anchor, section in zip(anchors, sections, strict=True))
    end = f"<footer>{escape(footer)}</footer>\n" if footer else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{CSS}</style>
</head>
<body>
<nav aria-label="Contents"><h2>Contents</h2>
<ol>
{contents}</ol>
</nav>
<main>
<header><h1>{escape(title)}</h1></header>
{before}{body}{end}</main>
</body>
</html>
"""


def inline_svg(document: str, prefix: str, alt: str) -> str:
    """Return an SVG document as an element for a page: ids begin with `prefix`, and its global style is left out.

    Args:
        document: As matplotlib writes it.
        prefix: Unique in the page, as ids of several figures are the same otherwise.
        alt: Text for those who cannot see it.
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
                # HTML knows no namespaces: href alone is SVG 2.
                del element.attrib[name]
                element.set("href", f"#{prefix}-{value.removeprefix('#')}" if value.startswith("#") else value)
            elif "url(#" in value:
                element.set(name, value.replace("url(#", f"url(#{prefix}-"))
    size = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": size, "role": "img", "aria-label": alt})
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _figure(content: str, caption: str, link: str) -> str:
    return f"<figure>\n{content}\n<figcaption>{escape(caption)} {link}</figcaption>\n</figure>\n"


def _download(data: str, name: str, kind: str) -> str:
    return f'<a class="save" download="{escape(name)}" href="{data}">Save as {kind}</a>'
