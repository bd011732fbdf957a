"""CSV files that people open in a spreadsheet."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet runs as a formula."""


def inert(cell: Any) -> Any:
    """Return a cell that a spreadsheet shows as it is: names of classes, clients, runs and leads come from outside."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) and len(cell) > 1 else cell


def write_csv(table: "DataFrame", file: Path) -> None:
    """Write a table without its index."""
    shown = table.copy()
    for name in table.select_dtypes(exclude=["number", "bool"]):
        shown[name] = table[name].map(inert)
    shown.rename(columns=inert).to_csv(file, index=False)
