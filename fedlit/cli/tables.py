"""Tables that commands print on the terminal."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, RenderableType
from rich.filesize import decimal

from fedlit.data.labels import harmonised
from fedlit.data.pictures.cache import CacheEntry
from fedlit.data.schemes import KINDS
from fedlit.experiment.choices import AXES, shipped
from fedlit.reports.table import Table

if TYPE_CHECKING:  # they import Lightning and pandas, which lists and checks of data do not need
    import pandas as pd

    from fedlit.experiment.plan import Plan
    from fedlit.tracking.run import Result

NOT_REPORTED = "not reported"
"""Shown in a table for numbers that the sites of a federation do not send."""

PIPE_WIDTH = 240
"""Columns of a console that is not a terminal, so that tables are not cut there."""

MEANS = {"macro": "mean over defined classes"} | {kind: f"mean over {name} classes" for kind, name in KINDS.items()}
MEANS |= {f"own_{kind}": f"{shown}, own images" for kind, shown in MEANS.items()}
"""Titles of the means over classes. With personal heads, each image counts only for the classes of its client."""


def wide_console() -> Console:
    """Return a console that does not cut tables in a pipe."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def cache_table(folder: Path, entries: Sequence[CacheEntry], console: Console) -> None:
    """Print the entries of a cache folder."""
    rows = []
    for entry in entries:
        runs = ", ".join(entry.runs[:3]) + (f" and {len(entry.runs) - 3} more" if len(entry.runs) > 3 else "")
        rows.append((entry.name, entry.what, runs or "-", decimal(entry.size), minute(entry.used)))
    console.print(f"{folder}: {decimal(sum(entry.size for entry in entries))} in {len(entries)} entries")
    if rows:
        console.print(Table("", ("name", "what", "runs"), ("size", "last use"), rows).printed())


def minute(seconds: float) -> str:
    """Return a time of the clock of this machine, to the minute."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def auroc_table(metrics: Mapping[str, float], prefix: str, title: str, width: int = 80) -> RenderableType:
    """Make a table of the AUROC of each class with its support, from metrics whose names begin with ``prefix``."""
    rows, start = [], f"{prefix}/auroc/"
    for key, value in metrics.items():
        if key.startswith(start):
            name = key.removeprefix(start)
            counts = [metrics[f"{prefix}/{count}/{name}"] for count in ("n_pos", "n_neg")]
            hidden = [NOT_REPORTED if count != count else "" for count in counts]
            support = (word or f"{count:.0f}" for word, count in zip(hidden, counts, strict=True))
            rows.append((shortened(name, max(25, width - 44)), _number(value, max(hidden) or "undefined"), *support))
    means = [(shown, f"{prefix}/auroc_{kind}") for kind, shown in MEANS.items() if f"{prefix}/auroc_{kind}" in metrics]
    rows += [(shown, _number(metrics[key]), "", "") for shown, key in means]
    images = metrics.get(f"{prefix}/auroc_images")
    note = "" if images is None else f"each AUROC ranks {images:,.0f} images, on average"
    head = ("AUROC", "positives", "negatives")
    return Table(title, ("class",), head, rows, summary=len(means), note=note).printed("boxed")


def sets_table(metrics: Mapping[str, float], sets: Sequence[str], title: str, width: int = 80) -> RenderableType:
    """Make a table of the AUROC of each class and the means over classes, by test set.

    Each test set has a column if these fit, and otherwise a row with numbered classes, or with means only.
    """
    start = f"test/{sets[0]}/auroc/"
    classes = [key.removeprefix(start) for key in metrics if key.startswith(start)]
    rows = {f"auroc/{name}": shortened(name, 32) for name in classes}
    kinds = [kind for kind in MEANS if any(f"test/{name}/auroc_{kind}" in metrics for name in sets)]
    means = {f"auroc_{kind}": MEANS[kind] for kind in kinds}
    shown = {name: shortened(name, 16) for name in sets}
    if len(set(shown.values())) < len(sets):
        shown = dict(zip(sets, sets, strict=True))
    if max(map(len, (*rows.values(), *means.values()))) + 4 + sum(max(6, len(n)) + 3 for n in shown.values()) > width:
        return _rows_of_sets(metrics, shown, kinds, classes, title=title, width=width)
    cells = [
        (name, *(_number(metrics.get(f"test/{each}/{key}", float("nan")), "-") for each in sets))
        for key, name in (rows | means).items()
    ]
    return Table(title, ("class",), tuple(shown.values()), cells, summary=len(means)).printed("boxed")


def _rows_of_sets(
    metrics: Mapping[str, float],
    sets: Mapping[str, str],
    kinds: Sequence[str],
    classes: Sequence[str],
    title: str,
    width: int,
) -> RenderableType:
    means = {f"auroc_{kind}": kind.replace("_", " ").replace("macro", "mean") for kind in kinds}
    used = max(map(len, ("test set", *sets.values()))) + sum(max(6, len(name)) + 1 for name in means.values())
    classes = classes if len(classes) > 1 else []  # the mean is that of the only class
    digits = 3 if used + 5 * len(classes) <= width else 2
    needed = used + sum(max(digits + 1, len(str(number))) + 1 for number in range(1, len(classes) + 1))
    caption = ", ".join(f"{number} {name}" for number, name in enumerate(classes, start=1))
    if needed > width:
        classes, caption = [], f"a terminal with {needed} columns (COLUMNS={needed}) shows every class"
    numbers = [str(number) for number in range(1, len(classes) + 1)]
    cells = []
    for name, text in sets.items():
        values = {key: metrics.get(f"test/{name}/{key}", float("nan")) for key in (*means, *_keys(classes))}
        averages = [_number(values[key], "-") for key in means]
        cells.append((text, *averages, *(_without_zero(values[key], digits) for key in _keys(classes))))
    return Table(title, ("test set",), (*means.values(), *numbers), cells, note=caption).printed("narrow")


def _keys(classes: Sequence[str]) -> list[str]:
    return [f"auroc/{name}" for name in classes]


def _without_zero(value: float, digits: int) -> str:
    """Return an AUROC as short as ``.57``, ``1.0`` if it is 1, and ``-`` if it is undefined."""
    text = _number(value, "-", digits)
    return text[1:] if text.startswith("0") else text[: digits + 1]


def sweep_table(sweep: "Plan", table: "pd.DataFrame", draws: str, width: int = 80) -> RenderableType:
    """Make a table of the metric's mean and standard deviation over the seeds, by case and point of the grid.

    ``table`` has one run per row; ``draws`` says for the title which draws of the data the seeds have.
    """
    by = [
        *(["case"] if (table["case"] != "").any() else []),
        *([] if sweep.names else sweep.grid),
    ]  # baselines are cases too
    room = max(8, (width - 34) // max(1, len(by)) - 3)
    title, names = f"{sweep.metric}, mean over seeds {draws}", tuple(shortened(name, room) for name in by)
    groups = table.groupby(by, sort=False, dropna=False) if by else [((), table)]
    shown = []
    for point, rows in groups:
        values, cells = rows[sweep.metric].dropna(), [shortened(str(each), room) for each in point]
        shown.append((*cells, *_mean_and_sd(values), f"{len(values)}/{len(rows)}"))
    return Table(title, names, ("mean", "SD", "runs"), shown).printed("boxed")


def seeds_table(results: Sequence["Result"], draws: str, width: int = 80) -> RenderableType:
    """Make a table of the mean AUROC over seeds of each test set, or of each class if there is one test set."""
    keys = [key for key in results[0].metrics if re.fullmatch(r"test/[^/]+/auroc(_(?!images).*|/.*)", key)]
    macro = [key for key in keys if key.endswith(("/auroc_macro", "/auroc_own_macro"))]
    shown = [
        (shortened(key, max(20, width - 28)), *_mean_and_sd(result.metrics[key] for result in results))
        for key in (keys if len(macro) == 1 else macro)
    ]
    title = f"over {len(results)} seeds {draws}"
    return Table(title, ("metric",), ("mean", "SD"), shown).printed("boxed")


def shortened(name: str, length: int) -> str:
    """Shorten a name by its middle, because names differ at their ends."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[len(name) - (length - 1 - head) :]}"


def _abreast(first: int, widths: Sequence[int], total: int) -> Iterator[slice]:
    """Yield the columns of each of several tables, which repeat the first column and are at most ``total`` wide."""
    start, used = 0, first + 4
    for number, width in enumerate(widths):
        if number > start and used + width + 3 > total:
            yield slice(start, number)
            start, used = number, first + 4
        used += width + 3
    yield slice(start, len(widths))


def list_shipped(console: Console, axes: Iterable[str] = AXES) -> None:
    """Print the built-in classes, one per line, cut to the width of a terminal."""
    for axis in axes:
        console.print(f"[bold]{axis}")
        for cls in shipped(axis):
            summary = (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")
            fitted = {"no_wrap": True, "overflow": "ellipsis"} if console.is_terminal else {"soft_wrap": True}
            console.print(f"  {cls.__name__:<22}{summary}", markup=False, **fitted)


def list_labels(console: Console) -> None:
    """Print the harmonised labels, one row per class and one column per data set."""
    names = harmonised()
    sources = list(dict.fromkeys(source for called in names.values() for source in called))
    columns = {source: [_called(called.get(source, "-")) for called in names.values()] for source in sources}
    widths = [max(map(len, (source, *cells))) for source, cells in columns.items()]
    for part in _abreast(max(map(len, names)), widths, console.width):
        rows = list(zip(names, *(columns[source] for source in sources[part]), strict=True))
        console.print(Table("", ("class", *sources[part]), (), rows).printed())


def list_checks(console: Console) -> None:
    """Print the checks of models, data and machines before training, and of its rounds."""
    from fedlit.federation.examinations import EVERY

    rows = [(each.name, " ".join((each.__doc__ or "").partition("\n\n")[0].split()), each.advice) for each in EVERY]
    console.print(Table("", ("check", "requirement", "advice"), (), rows).printed())


def _called(label: str | dict[str, list[str]]) -> str:
    if isinstance(label, str):
        return label
    ((rule, several),) = label.items()
    return f"{rule} of {', '.join(several)}"


def _mean_and_sd(values: Iterable[float]) -> tuple[str, str]:
    defined = [value for value in values if value == value]
    with np.errstate(invalid="ignore"):  # of an infinite loss
        sd = float(np.std(defined, ddof=1)) if len(defined) > 1 else np.nan
    return _number(float(np.mean(defined)) if defined else np.nan, "-"), _number(sd, "-")


def _number(value: float, undefined: str = "undefined", digits: int = 4) -> str:
    return f"{value:.{digits}f}" if value == value else undefined
