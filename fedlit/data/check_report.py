"""The terminal's view of a checked folder."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from fedlit.data.check import SHOWN, Check, Problem

PIPE_WIDTH = 240
"""Columns of a console that is no terminal: a table there is never cut."""

NUMBERS = ("positives", "negatives", "uncertain", "blank", "prevalence")


def report(found: Check, console: Console) -> None:
    """Print what was found in a folder, and what is wrong."""
    console.print(f"{found.reader.source}: {found.reader.root}", style="bold")
    if found.reading is not None:
        console.print(_summary(found))
        console.print(_labels(found))
    for remark in found.remarks:
        console.print(f"note: {remark}", style="yellow", soft_wrap=True)
    report_problems(found.problems, console)
    if not found.problems:
        depth = "decoded" if found.decoded else "opened, not decoded"
        console.print(f"nothing is wrong; the images were {depth}", style="green", soft_wrap=True)
    console.print()


def report_problems(problems: Sequence[Problem], console: Console) -> None:
    """Print what is wrong, each with its first places."""
    for problem in problems:
        console.print(f"wrong: {problem.text}", style="red", soft_wrap=True)
        for place in problem.places[:SHOWN]:
            console.print(f"  {place}", style="red", soft_wrap=True)
        if len(problem.places) > SHOWN:
            console.print(f"  ... and {len(problem.places) - SHOWN:,} more", style="red", soft_wrap=True)


def report_console() -> Console:
    """A console whose tables are whole in a pipe."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _summary(found: Check) -> Table:
    reading = found.reading
    _, per_patient = np.unique(reading.patients, return_counts=True)
    missing = sum(picture is None for picture in found.pictures)
    grid = Table.grid(padding=(0, 3))
    grid.add_row("images", f"{len(reading.names):,}, {missing:,} of them missing")
    grid.add_row("patients", f"{len(per_patient):,}")
    if len(per_patient):
        spread = f"{per_patient.min()} to {per_patient.max()}, median {np.median(per_patient):g}"
        grid.add_row("images per patient", f"{spread}, mean {per_patient.mean():.2f}")
    grid.add_row("splits", _splits(found))
    kinds = Counter(picture.kind for picture in found.opened)
    grid.add_row("files", "; ".join(f"{kind}: {count:,}" for kind, count in kinds.most_common()) or "none")
    if found.opened:
        grid.add_row("sizes", _sizes(Counter(picture.size for picture in found.opened)))
    return grid


def _splits(found: Check) -> str:
    reading = found.reading
    if reading.splits is None:
        return "no official split; patients are divided by data.split"
    parts = []
    for split in dict.fromkeys(reading.splits.tolist()):
        patients = len(np.unique(reading.patients[reading.splits == split]))
        parts.append(f"{split} {(reading.splits == split).sum():,} images of {patients:,} patients")
    unused = "" if found.reader.official_split else " (not used: data.official_split is false)"
    return "; ".join(parts) + unused


def _sizes(sizes: Counter[tuple[int, int]]) -> str:
    common = "; ".join(f"{w} x {h}: {count:,}" for (w, h), count in sizes.most_common(3))
    if len(sizes) <= 3:
        return common
    widths, heights = zip(*sizes, strict=True)
    spread = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
    return f"{len(sizes):,} different, {spread}; most often {common}"


def _labels(found: Check) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("label", "harmonised"):
        table.add_column(name, overflow="fold")
    for name in NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for count in found.labels():
        numbers = (count.positives, count.negatives, count.uncertain, count.blank)
        table.add_row(count.label, count.harmonised or "-", *(f"{n:,}" for n in numbers), f"{count.prevalence:.2%}")
    return table
