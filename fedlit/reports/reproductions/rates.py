"""The choice of rates: every method is tried on the same grid, and its best settings are used in all columns."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.reports.reproductions.document import Case, Rates, Scale, SweepPart, word
from fedlit.reports.reproductions.report import measured

Settings = dict[str, float]
"""Values that are tried together, by name: ``rate``, and those of the other axes."""


def tried_parts(scale: Scale) -> list[SweepPart]:
    """Return the runs from which rates are chosen, one part per federation and method; reproductions share them."""
    rates = scale.rates
    return [
        replace(
            part,
            experiment=f"{part.grid}-{word(value)}",
            cases={
                "-".join(f"{word(name)}-{number:g}" for name, number in settings.items()): Case(
                    scale.keys(rates.label, value) | rates.settings | _keys(settings, value, rates),
                    {rates.label: value, **settings},
                )
                for settings in tries(rates, value)
            },
            seeds=[rates.seed],
            metric=rates.metric,
            may_fail=True,
        )
        for part in scale.parts.values()
        for value in part.chooses(rates.label)
    ]


def tries(rates: Rates, value: Any) -> list[Settings]:
    """Return the settings that are tried for a value of the label: all combinations, or ``tries`` of them.

    Raises:
        ConfigError: There are fewer combinations than tries.
    """
    axes = {"rate": rates.grid}
    axes |= {name: axis.values for name, axis in rates.others.items() if axis.only is None or value in axis.only}
    every = [dict(zip(axes, combination, strict=True)) for combination in itertools.product(*axes.values())]
    if rates.tries is None:
        return every
    if rates.tries > len(every):
        raise ConfigError(
            f"rates.tries: expected at most {len(every)}, the combinations of {value}, found {rates.tries}"
        )
    drawn = random.Random(f"{rates.seed} {value}").sample(range(len(every)), rates.tries)
    return [every[i] for i in sorted(drawn)]


def chosen_parts(runs: pd.DataFrame, scale: Scale) -> list[SweepPart]:
    """Return the parts of a scale, with the rates that the runs have chosen.

    Raises:
        ConfigError: No run of a method has finished.
    """
    tried = with_validation(runs, scale.rates)
    return [
        _chosen(part, best(tried[tried["title"] == part.title], scale.rates), scale.rates)
        for part in scale.parts.values()
    ]


def with_validation(runs: pd.DataFrame, rates: Rates) -> pd.DataFrame:
    """Return the runs that were tried, with the validation metric of each one's best model."""
    return runs[["title", rates.label, "rate", *rates.others]].assign(
        validation=[measured(run).get(rates.metric, float("nan")) for run in runs["directory"]]
    )


def best(tried: pd.DataFrame, rates: Rates) -> dict[Any, Settings]:
    """Return each method's settings with the best validation metric; in a tie, those with the smallest rate."""
    ordered = tried.sort_values(["validation", "rate"], ascending=[False, True], kind="stable")
    first = {row[rates.label]: row for row in reversed(ordered.to_dict("records"))}
    names = ("rate", *rates.others)
    return {
        value: {name: first[value][name] for name in names if not pd.isna(first[value][name])}
        for value in dict.fromkeys(tried[rates.label])
    }


def choice_text(tried: pd.DataFrame, rates: Rates) -> str:
    """Return the sentences of the report on the choice."""
    chosen = "; ".join(
        f"{title}: " + ", ".join(f"{value} {_as_text(settings)}" for value, settings in best(of_title, rates).items())
        for title, of_title in tried.groupby("title", sort=False)
    )
    counts = tried.groupby(["title", rates.label], sort=False).size()
    text = rates.text.format(rates=", ".join(f"{rate:g}" for rate in rates.grid), tries=counts.max(), chosen=chosen)
    edges = "; ".join(at_edge(tried, rates))
    return f"{text} At the end of their range, so a wider range may be better: {edges}." if edges else text


def at_edge(tried: pd.DataFrame, rates: Rates) -> Iterator[str]:
    """Yield each chosen setting that is the smallest or the largest of its range."""
    ranges = {"rate": rates.grid} | {name: axis.values for name, axis in rates.others.items()}
    for title, of_title in tried.groupby("title", sort=False):
        for value, settings in best(of_title, rates).items():
            wide = {n: number for n, number in settings.items() if len(ranges[n]) > 1}
            if ends := [n for n, number in wide.items() if number in (min(ranges[n]), max(ranges[n]))]:
                yield f"{title}, {value}: {', '.join(f'{name} {settings[name]:g}' for name in ends)}"


def _chosen(part: SweepPart, best: dict[Any, Settings], rates: Rates) -> SweepPart:
    if diverged := [str(value) for value in part.chooses(rates.label) if value not in best]:
        raise ConfigError(
            f"no rate of {tuple(rates.grid)} trains {', '.join(diverged)} on {part.title}; see the runs' console.log"
        )
    cases = {}
    for name, case in part.cases.items():
        value = case.labels[rates.label]
        cases[name] = Case(case.keys | _keys(best[value], value, rates), case.labels | best[value])
    return replace(part, cases=cases)


def _keys(settings: Settings, value: Any, rates: Rates) -> dict[str, Any]:
    """Return the keys of the configuration for these settings; keys of an algorithm begin with its name."""
    keys = {}
    for name, number in settings.items():
        if name == "rate":
            keys[rates.key] = round(number / rates.divided_by.get(value, 1.0), 6)
        else:
            axis = rates.others[name]
            whole = float(number).is_integer() and all(isinstance(each, int) for each in axis.values)
            keys[axis.key] = int(number) if whole else number
    return keys


def _as_text(settings: Settings) -> str:
    rate, *others = settings.items()
    text = ", ".join(f"{name} {value:g}" for name, value in others)
    return f"{rate[1]:g}" + (f" ({text})" if text else "")
