"""Statistics of methods on what all of their runs share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedlit.metrics.intervals import DRAWS, LEVEL
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.alignment import share_by_draw
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.past_run import Notes
from fedlit.reports.compare.statistics import Statistics, statistics

SET = "federation"
"""Test set of the clients, which is compared by default."""


def numbers_of(
    methods: Sequence[Method],
    baseline: Method,
    predictions: Mapping[str, Predictions],
    notes: Notes,
    level: float = LEVEL,
    draws: int = DRAWS,
    progress: Callable[[str], None] = lambda text: None,
) -> Statistics:
    """Return the statistics of methods on the images, classes and draws of the data that all their runs share.

    Args:
        methods: Methods, all of whose runs have predictions.
        baseline: One of them, which is subtracted from the others.
        predictions: Predictions by the place of a run.
        notes: List to which notes on what is left out are added.
        level: Level of the intervals.
        draws: Number of draws of the bootstrap.
        progress: Function that shows a message about the current step.

    Raises:
        ConfigError: If the runs have nothing in common.
    """
    place, methods = methods.index(baseline), _of_common_draws(methods, notes)
    several = {method.name: len(method.runs) > 1 for method in methods}
    names = [f"{m.name} (seed {run.seed})" if several[m.name] else m.name for m in methods for run in m.runs]
    same_draws = all(set(method.draws) == set(methods[place].draws) for method in methods)
    drawn = [run.draw if same_draws else () for method in methods for run in method.runs]
    shared = share_by_draw(names, [predictions[run.where] for method in methods for run in method.runs], drawn)
    numbers = statistics(methods, methods[place], shared, level, draws, progress)
    notes += shared.notes + numbers.support.notes
    return numbers


def _of_common_draws(methods: Sequence[Method], notes: Notes) -> list[Method]:
    """Return the methods with only their runs on draws of the data that all have; all runs if there is no such draw."""
    common = set.intersection(*(set(method.draws) for method in methods))
    if not common or all(set(method.draws) == common for method in methods):
        return list(methods)
    left = [run.where for method in methods for run in method.runs if run.draw not in common]
    notes.append(f"Left out, as not all methods have runs on their draws of the data: {', '.join(left)}.")
    return [replace(m, runs=tuple(run for run in m.runs if run.draw in common)) for m in methods]
