"""The report of `fedlit data check` on the terminal."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as Grid

from fedlit.data.xrays.checked import SHOWN, Check, Problem
from fedlit.reports.table import Table

COLUMNS = 12
"""Largest number of columns, one per client or site, of a table of numbers."""


def report(check: Check, console: Console) -> None:
    """Print the contents of a folder, and its problems."""
    console.print(f"{check.reader.source}: {check.reader.root}", style="bold")
    if check.reading is not None:
        console.print(_summary(check))
        console.print(_labels(check).printed())
        if check.positives is not None:
            console.print(_positives(check.images, check.positives).printed())
        if check.reading.groups:
            console.print(_groups(check.groups()).printed())
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
    rows = [(str(name), *row) for name, *row in cells.itertuples(name=None)]
    caption = "training / validation / test, as fit divides them"
    return Table(caption, ("positives",), tuple(map(str, cells.columns)), rows)


def _groups(counts: pd.DataFrame) -> Table:
    """Return a table of images and patients by group and site, or by group if there are many sites."""
    if len(counts.columns.unique(0)) > COLUMNS:
        counts = pd.concat({"all sites": counts.T.groupby(level=1).sum().T}, axis=1)
    sites, rows = counts.columns.unique(0), []
    for (name, value), row in counts.iterrows():
        cells = (f"{row[site, 'images']:,} of {row[site, 'patients']:,} patients" for site in sites)
        rows.append((name, value or "unknown", *cells))
    return Table("", ("group", ""), tuple(map(str, sites)), rows)


def _summary(check: Check) -> Grid:
    reading = check.reading
    _, per_patient = np.unique(reading.patients, return_counts=True)
    missing = sum(image is None for image in check.pictures)
    grid = Grid.grid(padding=(0, 3))
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
    rows = [
        (label, harmonised or "-", *(f"{count:,}" for count in counts), f"{prevalence:.2%}")
        for label, harmonised, *counts, prevalence in labels.itertuples()
    ]
    return Table("", ("label", "harmonised"), tuple(labels.columns[1:]), rows)
