"""A table of a report: made once, and shown on a terminal, in a page, in Markdown and in LaTeX; numbers as text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from rich import box
from rich.console import Group
from rich.table import Column
from rich.table import Table as Printed
from rich.text import Text

ABSENT = "-"
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
OPEN = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
LOOKS: dict[str, dict[str, Any]] = {"open": OPEN, "narrow": OPEN | {"padding": 0}, "boxed": {}}
BOLD = "textbf:--rwrap;"
SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "\u2212": "$-$", "\u00b1": r"$\pm$",
    "\u00b2": "$^2$",
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A number of a table, as text, with what is known of it."""

    text: str  # Such as ``0.812``, or ``-`` if it is undefined.
    spread: str = ""  # Its standard deviation over seeds.
    interval: str = ""  # Both ends of its interval.
    stars: str = ""  # Those of its test.
    bold: bool = False  # Whether a test supports a claim.

    def __str__(self) -> str:
        value = f"{self.text} ± {self.spread}" if self.spread else self.text
        return f"{value} {self.stars}" if self.stars else value


Cell = str | Number


@dataclass(frozen=True)
class Table:
    """A table, whose first columns name a row and whose others have numbers."""

    caption: str
    names: tuple[str, ...]  # Heads of the columns that name a row.
    values: tuple[str, ...]  # Heads of the columns of numbers.
    rows: Sequence[Sequence[Cell]]  # Cells of the names, then of the numbers.
    summary: int = 0  # Number of last rows that summarise the others, and are set apart.
    note: str = ""  # Text below the table on a terminal.

    @property
    def head(self) -> tuple[str, ...]:
        """Heads of all columns."""
        return self.names + self.values

    def printed(self, look: Literal["open", "boxed", "narrow"] = "open") -> Group:
        """Return the table for a terminal. An ``open`` one folds what does not fit, a ``narrow`` one has no margins."""
        whole = look != "open"
        columns = [Column(name, overflow="fold", no_wrap=whole) for name in self.names]
        columns += [Column(name, overflow="fold", no_wrap=whole, justify="right") for name in self.values]
        table = Printed(*columns, **LOOKS[look])
        for place, row in enumerate(self.rows):
            if self.summary and place == len(self.rows) - self.summary:
                table.add_section()
            table.add_row(*(Text(_lines(cell)) for cell in row))
        parts = Text(self.caption, "italic"), table, Text(self.note, "dim")
        return Group(*(part for part in parts if part))

    def by_group(self) -> Iterator[Text]:
        """Yield lines in which the first name is a heading of its rows; a row with a claim is bold."""
        shown = [[_lines(cell).replace("\n", " ") for cell in row[1:]] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.head[1:], *shown, strict=True)]
        texts = len(self.names) - 1

        def line(cells: Sequence[str]) -> str:
            placed = zip(cells, widths, range(len(cells)), strict=True)
            return "  ".join(c.ljust(w) if i < texts else c.rjust(w) for c, w, i in placed).rstrip()

        yield Text(self.caption, "italic")
        yield Text(f"  {line(self.head[1:])}", "bold")
        for heading, rows in groupby(zip(self.rows, shown, strict=True), lambda pair: str(pair[0][0])):
            yield Text(heading, "bold")
            for row, cells in rows:
                yield Text(f"  {line(cells)}", "bold" if any(_claims(cell) for cell in row) else "")

    def markdown(self) -> list[str]:
        """Return the lines of the table in Markdown, without its caption."""
        rows = [
            f"| {' | '.join(_lines(cell).replace(chr(10), ' ') for cell in row)} |" for row in (self.head, *self.rows)
        ]
        return [rows[0], "|---" * len(self.head) + "|", *rows[1:]]

    def latex(self) -> str:
        """Return the table in LaTeX, with booktabs."""
        import pandas as pd  # takes half a second, and only this needs it

        frame = pd.DataFrame([[_tex(cell) for cell in row] for row in self.rows], columns=range(len(self.head)))
        look = [[BOLD if _claims(cell) else "" for cell in row] for row in self.rows]
        style = frame.style.hide(axis="index").apply(lambda _: pd.DataFrame(look), axis=None)
        columns, caption = "l" * len(self.names) + "r" * len(self.values), escaped(self.caption)
        style = style.relabel_index([escaped(name) for name in self.head], axis=1)
        text = style.to_latex(column_format=columns, hrules=True, position_float="centering", caption=caption)
        lines = ["% needs \\usepackage{booktabs}", *text.splitlines()]
        if self.summary:
            lines.insert(lines.index(r"\bottomrule") - self.summary, r"\midrule")
        return "\n".join([*lines, ""])


def escaped(text: str) -> str:
    """Return text with the characters escaped that mean something to LaTeX."""
    return re.sub("|".join(map(re.escape, SIGNS)), lambda match: SIGNS[match[0]], text)


def _tex(cell: Cell) -> str:
    if not isinstance(cell, Number):
        return escaped(cell)
    if cell.text == "-":
        return "--"
    ends = f" [{cell.interval.replace(' to ', ', ')}]" if cell.interval else ""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped(f"{cell}{ends}"))


def _claims(cell: Cell) -> bool:
    return isinstance(cell, Number) and cell.bold


def _lines(cell: Cell) -> str:
    return f"{cell}\n{cell.interval}" if isinstance(cell, Number) and cell.interval else str(cell)


def size(count: float) -> str:
    """Return a number of bytes with its unit, such as ``1.3 GB``."""
    if count != count:
        return ABSENT
    factor, unit = next((pair for pair in UNITS if count >= pair[0]), UNITS[-1])
    return f"{count / factor:.3g} {unit}"


def number(value: float, form: str = ",.0f") -> str:
    """Return a number as text, ``-`` if it is undefined."""
    if value != value:
        return ABSENT
    text = format(value, form)
    return text.replace("-", "+" if "+" in form else "", 1) if text.strip("-0.") == "" else text


def short(value: float) -> str:
    """Return an AUROC with three decimals, ``-`` if it is undefined."""
    return number(value, ".3f")


def interval_text(low: float, high: float, form: str = ".3f") -> str:
    """Return both ends of an interval, ``-`` if it is undefined."""
    return f"{low:{form}} to {high:{form}}" if low == low else ABSENT
