"""Terminal output of a comparison, in 80 columns."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fedlit.metrics.intervals import FEWEST
from fedlit.reports.compare.comparison import Comparison
from fedlit.reports.compare.methods import ALONE, differences
from fedlit.reports.compare.tables import (
    estimates_table,
    gains_list,
    logged_table,
    matrix_table,
    methods_table,
    settings_list,
    spread_table,
)

NAME_WIDTH = 22
COSTS = "Means over runs; sent: bytes from and to all clients; steps: of all clients."
COUNTS = "Counts for each class: images (patients); macro: mean over classes"
GAINS = """alone: the site's own model; elsewhere: gain on the test images of all other
sites, where one model scores them. Stars: p for both noises, corrected by Holm
over sites and methods; intervals are not corrected."""
NO_INTERVAL = f"-: too few patients for an interval (fewer than {FEWEST} on the rarer side)"
LEGEND = """p img, p seed: p for test images only and for seeds only, uncorrected.
Stars: p for both noises, corrected by Holm for all tests of the report (half of
the error is for means), below *.05 **.01 ***.001, ns otherwise"""
LOGGED = "Values of all test images: without cases, nothing is known of test-set noise."
CASES = """Intervals and p img: test-set noise, from the table of cases. Stars: p for both
noises, corrected by Holm for all differences of logged metrics."""
ONE_SEED = "A method with one seed gets no stars: it says nothing about seed noise."


def show(comparison: Comparison, console: Console) -> None:
    """Print methods, AUROC, differences, verdicts and notes."""
    labels = _labels([method.name for method in comparison.methods])
    console.print(methods_table(comparison, labels).printed())
    console.print(Text(COSTS, "dim"))
    console.print()
    if (numbers := comparison.statistics) is not None:
        for line in estimates_table(comparison, numbers, labels).by_group():
            console.print(line)
        legend = {
            COUNTS: numbers.shared.patients is not None,
            f"SD: over {numbers.spread}.": numbers.spread is not None,
            NO_INTERVAL: any(e.interval.low != e.interval.low for s in numbers.scored for e in s.classes),
            LEGEND: bool(numbers.against),
            ONE_SEED: any(not against.several_seeds for against in numbers.against),
        }
        for text, applies in legend.items():
            if applies:
                console.print(Text(text, "dim"))
        console.print()
        for against in numbers.against:
            console.print(f"{against.verdict(numbers.shared.classes)}\n")
    if comparison.logged:
        for line in logged_table(comparison, labels).by_group():
            console.print(line)
        console.print(Text(CASES if any(each.of_cases for each in comparison.logged) else LOGGED, "dim"))
        console.print()
    if comparison.sites:
        for line in spread_table(comparison.sites, labels).by_group():
            console.print(line)
        console.print()
    if comparison.margins:
        console.print(Text("Non-inferiority", "italic"))
    for each in comparison.margins:
        console.print(f"{each.text}\n")
    if comparison.joining is not None:
        for line in gains_list(comparison.joining).by_group():
            console.print(line)
        console.print(Text(GAINS, "dim"))
        console.print(matrix_table(comparison.joining).printed())
        for gains in comparison.joining.methods:
            if gains.summary is not None:
                console.print(f"\n{gains.summary.text(gains.method.name)}")
        console.print()
    differing = differences(comparison.methods)
    if len(differing):
        console.print(settings_list(differing, labels).printed())
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
