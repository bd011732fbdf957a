"""Terminal output of a comparison, in 80 columns."""

from collections.abc import Iterator, Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedlit.metrics.intervals import FEWEST
from fedlit.metrics.paired import p_text
from fedlit.reports.compare.comparison import Comparison
from fedlit.reports.compare.cost import cost_row
from fedlit.reports.compare.difference import Difference
from fedlit.reports.compare.joining import Joining
from fedlit.reports.compare.methods import differences
from fedlit.reports.compare.statistics import AurocEstimate, Statistics
from fedlit.reports.compare.words import ALONE, interval_text, number, short

NAME_WIDTH = 22
MOST_SETTINGS = 12
STARS = 3
COSTS = "Means over runs; sent: bytes from and to all clients; steps: of all clients."
GAINS = """alone: the site's own model; elsewhere: gain on the test images of all other
sites, where one model scores them. Stars: p for both noises, corrected by Holm
over sites and methods; intervals are not corrected."""
NO_INTERVAL = f"-: too few patients for an interval (fewer than {FEWEST} on the rarer side)"
LEGEND = """p img, p seed: p for test images only and for seeds only, uncorrected.
Stars: p for both noises, corrected by Holm over methods and classes (for the
mean, over methods), below *.05 **.01 ***.001, ns otherwise"""
ONE_SEED = "A method with one seed gets no stars: it says nothing about seed noise."
WIDTHS = (5, 5, 11, 6, 5, 6, STARS)
"""Widths of the columns mean, SD, interval, difference, both p and stars."""


def show(comparison: Comparison, console: Console) -> None:
    """Print methods, AUROC, differences, verdicts and notes."""
    labels = _labels([method.name for method in comparison.methods])
    console.print(_methods(comparison, labels))
    console.print(Text(COSTS, "dim"))
    console.print()
    if comparison.statistics is not None:
        for line in _auroc(comparison, comparison.statistics, labels):
            console.print(line)
        if comparison.statistics.spread is not None:
            console.print(Text(f"SD: over {comparison.statistics.spread}.", "dim"))
        if any(each.interval.low != each.interval.low for s in comparison.statistics.scored for each in s.classes):
            console.print(Text(NO_INTERVAL, "dim"))
        if comparison.statistics.against:
            console.print(Text(LEGEND, "dim"))
        if any(not against.several_seeds for against in comparison.statistics.against):
            console.print(Text(ONE_SEED, "dim"))
        console.print()
        for against in comparison.statistics.against:
            console.print(f"{against.verdict(comparison.statistics.shared.classes)}\n")
    if comparison.margins or comparison.plans:
        console.print(Text("Non-inferiority and power", "italic"))
    for each in (*comparison.margins, *comparison.plans):
        console.print(f"{each.text}\n")
    if comparison.joining is not None:
        for line in _gains(comparison.joining):
            console.print(line)
        for gains in comparison.joining.methods:
            if gains.summary is not None:
                console.print(f"\n{gains.summary.text(gains.method.name)}")
        console.print()
    differing = differences(comparison.methods)
    if len(differing):
        console.print(_settings(differing, labels))
        console.print()
    if len(comparison.methods) == 1:
        console.print(f"{ALONE}\n")
    for note in (*comparison.notes, *(comparison.joining.notes if comparison.joining else ())):
        console.print(Text(f"note: {note}", style="yellow"))


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Return names that fit; shortened names have a number, and the first table has the full names."""
    if all(len(name) <= NAME_WIDTH for name in names):
        return {name: name for name in names}
    return {name: f"{i} {name}"[:NAME_WIDTH].rstrip(" ,") for i, name in enumerate(names, start=1)}


def _methods(comparison: Comparison, labels: dict[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title="Methods", title_justify="left", pad_edge=False)
    table.add_column("method", overflow="fold")
    for name in ("runs", "rounds", "sent", "steps", "drift"):
        table.add_column(name, justify="right", no_wrap=True)
    numbered = any(label != name for name, label in labels.items())
    for place, method in enumerate(comparison.methods, start=1):
        name = f"{place} {method.name}" if numbered else method.name
        name += " (baseline)" if method.name == comparison.baseline.name and len(comparison.methods) > 1 else ""
        table.add_row(Text(name), str(len(method.runs)), *cost_row(method.runs))
    return table


def _auroc(comparison: Comparison, numbers: Statistics, labels: dict[str, str]) -> Iterator[Text]:
    """Yield one line per class with its support, each followed by one line per method; the mean is last."""
    shared = numbers.shared
    yield Text(f"AUROC on test set {comparison.test_set!r}, {numbers.images}", "italic")
    if shared.patients is not None:
        yield Text("Counts for each class: images (patients); macro: mean over classes", "dim")
    compared = ("diff.", "p img", "p seed", "") if numbers.against else ()
    head = ("mean", "SD", f"{100 * numbers.level:g}% int.", *compared)
    widths = (max(len("method"), *map(len, labels.values())), *WIDTHS)
    yield Text(_line(("  method", *head), widths), "bold")
    changes = {against.method.name: against.rows for against in numbers.against}
    for i, name in enumerate(numbers.names):
        both = (numbers.support.positives, " positive"), (numbers.support.negatives, " negative")
        support = ", ".join(of(i, sign) for of, sign in both) if i < len(shared.classes) else ""
        yield Text.assemble((name, "bold"), (f": {support}" if support else "", "dim"))
        for scored in numbers.scored:
            estimate, change = scored.rows[i], changes.get(scored.method.name)
            row = _row(estimate, change[i] if change else None, bool(numbers.against))
            yield Text(_line((f"  {labels[scored.method.name]}", *row), widths), "bold" if "*" in row[-1] else "")


def _gains(joining: Joining) -> Iterator[Text]:
    """Yield one line per site for each method: both AUROCs at the site, the gain, and the gain on the other sites."""
    yield Text("What joining brought each site: AUROC on its own test images", "italic")
    sites = [gain.site for gain in joining.methods[0].home]
    widths = (max(map(len, ("site", *sites))), 5, 6, 28, STARS, 10)
    for gains in joining.methods:
        yield Text(gains.method.name, "bold")
        head = ("  site", "alone", "joined", f"gain [{100 * joining.level:g}% interval]", "", "elsewhere")
        yield Text(_line(head, widths))
        for home, away in zip(gains.home, gains.away, strict=True):
            elsewhere = "-" if away is None else f"{number(away.gain.value, '+.3f')} {away.gain.stars}"
            values = (short(home.own.value), short(home.joined.value), home.text, home.gain.stars, elsewhere)
            yield Text(_line((f"  {home.site}", *values), widths), "bold" if home.gain.claimed else "")
    yield Text(GAINS, "dim")


def _row(estimate: AurocEstimate, change: Difference | None, compared: bool) -> tuple[str, ...]:
    interval = interval_text(estimate.interval.low, estimate.interval.high).replace(" to ", "-")
    first = (short(estimate.value), short(estimate.sd), interval)
    if change is None:
        return (*first, "base", "", "", "") if compared else first
    both = (p_text(p).replace("< 0.001", "<.001") for p in (change.p_images, change.p_seeds))
    return (*first, number(change.value, "+.3f"), *both, change.stars)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join cells; names and stars are aligned left, numbers right."""
    name, *values = cells
    shown = [name.ljust(widths[0] + 2)]
    shown += [v.ljust(w) if w == STARS else v.rjust(w) for v, w in zip(values, widths[1:], strict=False)]
    return "  ".join(shown).rstrip()


def _settings(differing: pd.DataFrame, labels: dict[str, str]) -> Table:
    look = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
    table = Table(title="Settings that differ (-: not set)", title_justify="left", **look)
    table.add_column("setting", overflow="fold", max_width=36)
    table.add_column("value  (methods)", overflow="fold")
    for key, row in list(differing.iterrows())[:MOST_SETTINGS]:
        owners: dict[str, list[str]] = {}
        for name, value in row.items():
            owners.setdefault(value, []).append(labels[name])
        lines = "\n".join(f"{value}  ({'; '.join(names)})" for value, names in owners.items())
        table.add_row(Text(str(key)), Text(lines))
    if len(differing) > MOST_SETTINGS:
        table.add_row(f"{len(differing) - MOST_SETTINGS} more are in the report")
    return table
