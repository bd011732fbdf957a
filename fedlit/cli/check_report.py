"""The report of `fedlit data check` on the terminal."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from fedlit.data.xrays.checked import SHOWN, Check, Problem

COLUMNS = 12
"""Largest number of columns, one per client or site, of a table of numbers."""


def report(check: Check, console: Console) -> None:
    """Print the contents of a folder, and its problems."""
    console.print(f"{check.reader.source}: {check.reader.root}", style="bold")
    if check.reading is not None:
        console.print(_summary(check))
        console.print(_labels(check))
        if check.positives is not None:
            console.print(_positives(check.images, check.positives))
        if check.reading.groups:
            console.print(_groups(check.groups()))
    for remark in check.remarks:
        console.print(f"note: {remark}", style="yellow", soft_wrap=True)
    report_problems(check.problems, console)
    if not check.problems:
        depth = "decoded" if check.decoded else "opened (--decode decodes them, and finds duplicates as fit does)"
        console.print(f"no problems; the images were {depth}", style="green", soft_wrap=True)
    console.print()


def report_problems(problems: Sequence[Problem], console: Console) -> None:
    """Print problems, each with its first places, or with all."""
    for problem in problems:
        console.print(f"problem: {problem.text}", style="red", soft_wrap=True)
        shown = len(problem.places) if problem.all_shown else SHOWN
        for place in problem.places[:shown]:
            console.print(f"  {place}", style="red", soft_wrap=True)
        if len(problem.places) > shown:
            console.print(f"  ... and {len(problem.places) - shown:,} more", style="red", soft_wrap=True)


def _positives(images: pd.DataFrame, positives: pd.DataFrame) -> Table:
    """Return a table of images and positives by class and client, with the numbers of training, validation and test."""
    counts = pd.DataFrame({"images": images.stack(future_stack=True), **positives}).astype(object)
    texts = counts.map(lambda count: "-" if pd.isna(count) else f"{int(count):,}")
    cells = texts.groupby(level=0, sort=False).agg(" / ".join).T
    if len(cells.columns) > COLUMNS:
        cells = cells.T
    table = Table("positives", *map(str, cells.columns), box=box.SIMPLE_HEAD, show_edge=False)
    table.title, table.title_justify = "training / validation / test, as fit divides them", "left"
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *row in cells.itertuples(name=None):
        table.add_row(name, *row)
    return table


def _groups(counts: pd.DataFrame) -> Table:
    """Return a table of images and patients by group and site, or by group if there are many sites."""
    if len(counts.columns.unique(0)) > COLUMNS:
        counts = pd.concat({"all sites": counts.T.groupby(level=1).sum().T}, axis=1)
    table = Table("group", "", box=box.SIMPLE_HEAD, show_edge=False)
    sites = counts.columns.unique(0)
    for site in sites:
        table.add_column(str(site), justify="right")
    for (name, value), row in counts.iterrows():
        cells = (f"{row[site, 'images']:,} of {row[site, 'patients']:,} patients" for site in sites)
        table.add_row(name, value or "unknown", *cells)
    return table


def _summary(check: Check) -> Table:
    reading = check.reading
    _, per_patient = np.unique(reading.patients, return_counts=True)
    missing = sum(image is None for image in check.pictures)
    grid = Table.grid(padding=(0, 3))
    grid.add_row("images", f"{len(reading.names):,}, {missing:,} of them missing")
    grid.add_row("patients", f"{len(per_patient):,}")
    if len(per_patient):
        spread = f"{per_patient.min()} to {per_patient.max()}, median {np.median(per_patient):g}"
        grid.add_row("images per patient", f"{spread}, mean {per_patient.mean():.2f}")
    grid.add_row("splits", _splits(check))
    kinds = Counter(picture.kind for picture in check.opened)
    grid.add_row("files", "; ".join(f"{kind}: {count:,}" for kind, count in kinds.most_common()) or "none")
    if check.opened:
        grid.add_row("sizes", _sizes(Counter(picture.size for picture in check.opened)))
    return grid


def _splits(check: Check) -> str:
    reading = check.reading
    if reading.splits is None:
        return "no official split; data.split divides the patients"
    table = pd.DataFrame({"split": reading.splits, "patient": reading.patients})
    counts = table.groupby("split", sort=False)["patient"]
    parts = (f"{split} {len(ids):,} images of {ids.nunique():,} patients" for split, ids in counts)
    unused = "" if check.reader.official_split else " (not used: data.official_split is false)"
    return "; ".join(parts) + unused


def _sizes(sizes: Counter[tuple[int, int]]) -> str:
    common = "; ".join(f"{w} x {h}: {count:,}" for (w, h), count in sizes.most_common(3))
    if len(sizes) <= 3:
        return common
    widths, heights = zip(*sizes, strict=True)
    spread = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
    return f"{len(sizes):,} different, {spread}; most often {common}"


def _labels(check: Check) -> Table:
    labels = check.labels()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("label", "harmonised"):
        table.add_column(name, overflow="fold")
    for name in labels.columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for label, harmonised, *counts, prevalence in labels.itertuples():
        table.add_row(label, harmonised or "-", *(f"{count:,}" for count in counts), f"{prevalence:.2%}")
    return table
