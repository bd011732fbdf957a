"""The report of a tuning: ranges, tries, the chosen settings, and what the choice cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlit.core.system.files import write_csv
from fedlit.experiment.naming import as_option
from fedlit.experiment.plan import Plan
from fedlit.experiment.ranges import at_edge
from fedlit.experiment.samplers import Point
from fedlit.experiment.sweep import draws_of
from fedlit.experiment.tuning import Tuned, as_list, as_text, noted, number_of_tries
from fedlit.reports.reproductions.published import grid
from fedlit.reports.table import number
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result, metric_of

FAILED = (
    "A failed try counts as a try and cannot win. Repeat the command to run it again; its console.log has the reason."
)
AVERAGED = (
    "Each cell is the value that the best of so many tries has on average, if they are drawn at random from all tries. "
    "A method that still improves in the last columns may gain from more tries."
)
IN_ORDER = "Each cell is the best of so many tries, in their order: the results of earlier ones shape later ones."
SEARCHES = {
    "random": "random search with seed {seed}, each from another of {tries} equal parts of each range",
    "grid": "a grid",
    "tpe": "Optuna's TPE with seed {seed}, after three random ones",
}
EDGE = (
    "A value at the edge of its range is the lowest or highest that was tried: a wider range may be better, so compare "
    "this method with others only after widening it."
)
BY_METHOD = (
    "Every final seed has these settings, so intervals and p of `fedlit compare` are about these settings, not about "
    "the methods: they leave out the luck of the choice. With `by: seed` in the rule, they contain it."
)
BY_SEED = (
    "Each final seed chooses its own settings by its own validation data. Differences that are paired by seed "
    "therefore contain the luck of the choice: intervals and p of `fedlit compare` are about the methods."
)


@dataclass(frozen=True)
class TuningCost:
    """The cost of the tries of a method."""

    runs: int  # Number of runs.
    failed: int  # Number of runs without a result.
    steps: int  # Local steps of all clients.
    seconds: float  # Seconds of rounds and evaluations, over all sessions of a run.


def cost_of(tuned: Tuned, metric: str) -> TuningCost:
    """Return the cost of a method's tries, from the metrics that its runs have logged."""
    sums = {"round/steps": 0.0, "time/round_s": 0.0, "time/evaluate_s": 0.0}
    for run in tuned.runs:
        for _, key, value in MetricsFile(run.directory / "metrics.csv").rows():
            if key in sums:
                sums[key] += value
    failed = sum(not Result.read(run.directory) or math.isnan(metric_of(run.directory, metric)) for run in tuned.runs)
    seconds = sums["time/round_s"] + sums["time/evaluate_s"]
    return TuningCost(len(tuned.runs), failed, round(sums["round/steps"]), seconds)


def best_by_tries(scores: Sequence[float], sign: int) -> list[float]:
    """Return the mean best score of 1, 2, ... tries that are drawn without replacement from all tries.

    Failed tries are worse than all others; a mean that a draw of only failed tries would enter is NaN. See the expected
    validation performance of Dodge et al. (2019), which draws with replacement.
    """
    ordered = sorted(sign * score for score in scores if not math.isnan(score))
    total, failed = len(scores), len(scores) - len(ordered)
    means = []
    for n in range(1, total + 1):
        # A score is the best of a draw if the others are among those below it.
        shares = [math.comb(failed + below, n - 1) / math.comb(total, n) for below in range(len(ordered))]
        mean = sum(share * score for share, score in zip(shares, ordered, strict=True))
        means.append(sign * mean if n > failed else math.nan)
    return means


def best_so_far(scores: Sequence[float], sign: int) -> list[float]:
    """Return the best score of the first 1, 2, ... tries; NaN before one has finished."""
    return (sign * np.fmax.accumulate(sign * np.asarray(scores))).tolist()


def edges(chosen: Point, tried: Sequence[Point]) -> dict[str, str]:
    """Return ``lowest`` or ``highest`` for each chosen value that is an end of what was tried, by key."""
    ends = {key: at_edge(value, [point[key] for point in tried]) for key, value in chosen.items()}
    return {key: end for key, end in ends.items() if end is not None}


def write_tuning_report(tuning: Plan, tuned: Sequence[Tuned], finals: pd.DataFrame, folder: Path) -> str:
    """Write ``report.md`` and its tables as CSV; return the text of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    costs = {each.case: cost_of(each, tuning.rule.metric) for each in tuned}
    curve = best_so_far if tuning.sampler == "tpe" else best_by_tries
    curves = {
        each.case: np.mean([curve(s, tuning.rule.sign) for s in zip(*each.scores, strict=True)], axis=0)
        for each in tuned
    }
    tables = {
        "tries": pd.DataFrame([row for each in tuned for row in _tries(tuning, each)]),
        "best_by_tries": pd.DataFrame(
            [{"case": case, "tries": n, "best": v} for case, values in curves.items() for n, v in enumerate(values, 1)]
        ),
        "costs": pd.DataFrame([{"case": case, **asdict(cost)} for case, cost in costs.items()]),
        "finals": finals,
    }
    for name, table in tables.items():
        write_csv(table, folder / f"{name}.csv")
    text = "\n".join(_page(tuning, tuned, finals, costs, curves))
    (folder / "report.md").write_text(text, encoding="utf-8")
    return text


def _tries(tuning: Plan, tuned: Tuned) -> list[dict[str, Any]]:
    rows, chose = [], {(each.place, seed) for each in tuned.chosen for seed in each.seeds}
    for place, (point, scores) in enumerate(zip(tuned.points, tuned.scores, strict=True)):
        shown = {key: as_option(value) if isinstance(value, (list, dict)) else value for key, value in point.items()}
        of_try = {"case": tuned.case, "try": place + 1, **shown}
        for seed, score in zip(tuning.seeds, scores, strict=False):  # one score if the method has one choice
            of_seed = {"seed": seed} if tuning.rule.by == "seed" else {}
            rows.append(of_try | of_seed | {"score": score, "chosen": (place, seed) in chose})
    return rows


def _page(
    tuning: Plan,
    tuned: Sequence[Tuned],
    finals: pd.DataFrame,
    costs: Mapping[str, TuningCost],
    curves: Mapping[str, Sequence[float]],
) -> list[str]:
    rule = tuning.rule
    tries = number_of_tries(tuning)
    search = SEARCHES[tuning.sampler].format(seed=tuning.search_seed, tries=tries)
    ranges = [[case, key, str(each)] for case, of_case in tuning.ranges_of.items() for key, each in of_case.items()]
    seeds = rule.by == "seed"
    chosen = [row for each in tuned for row in _chosen(each, seeds)]
    lines = [
        f"# {tuning.experiment}: {len(tuned)} methods, {tries} tries each",
        "",
        f"Tries are from {search}. {_rule(tuning, finals)}",
        "",
        BY_SEED if rule.by == "seed" else BY_METHOD,
        "",
        *[line for note in noted(tuned) for line in (note, "")],
        "## Chosen settings",
        "",
        *grid(["method", *["seeds"] * seeds, "chosen", "score", "edge of a range"], chosen),
        "",
        *([EDGE, ""] if any(row[-1] != "no" for row in chosen) else []),
        "## Final runs",
        "",
        *grid(["method", f"{tuning.metric}, mean", "SD", "runs"], _finals(tuning, finals)),
        "",
        "The SD is over the final seeds. `fedlit compare` has intervals and tests.",
        "",
        "## Ranges",
        "",
        *grid(["method", "key", "range"], ranges),
        "",
        "## Best score by number of tries",
        "",
        *_curves(curves),
        "",
        IN_ORDER if tuning.sampler == "tpe" else AVERAGED,
        "",
        "## Cost of the tries",
        "",
        *grid(
            ["method", "runs", "failed", "local steps, all clients", "seconds"],
            [[case, str(c.runs), str(c.failed), f"{c.steps:,}", f"{c.seconds:,.0f}"] for case, c in costs.items()],
        ),
        "",
    ]
    return lines + ([FAILED, ""] if any(cost.failed for cost in costs.values()) else [])


def _rule(tuning: Plan, finals: pd.DataFrame) -> str:
    rule = tuning.rule
    wins = f"The {'largest' if rule.sign > 0 else 'smallest'} score wins: {rule.metric} {rule.place}"
    if rule.by == "seed":
        return f"{wins}, for each of {as_list(tuning.seeds)}, {draws_of(finals)}."
    final = f"The final runs have {as_list(tuning.seeds)}, {draws_of(finals)}."
    return f"{wins}, as the mean over {as_list(tuning.seeds_of_tries)}. {final}"


def _chosen(tuned: Tuned, seeds: bool) -> list[list[str]]:
    """Return a row for each chosen setting, with the ``seeds`` that chose it if they do."""
    rows = []
    for each in tuned.chosen:
        point = tuned.points[each.place]
        ends = ", ".join(f"{key}: {end} tried" for key, end in edges(point, tuned.points).items())
        whose = [", ".join(map(str, each.seeds))] * seeds
        rows.append([tuned.case, *whose, as_text(point), f"{each.score:.4f}", ends or "no"])
    return rows


def _finals(tuning: Plan, finals: pd.DataFrame) -> list[list[str]]:
    rows = []
    for of_group, values in finals.groupby(["case", *([] if tuning.names else tuning.grid)], sort=False)[tuning.metric]:
        numbers = [number(each, ".4f") for each in (values.mean(), values.std())]
        rows.append([", ".join(map(str, of_group)), *numbers, f"{values.notna().sum()}/{len(values)}"])
    return rows


def _curves(curves: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a table with at most nine columns: all numbers of tries, or powers of two and the last."""
    tries = len(next(iter(curves.values())))
    shown = range(1, tries + 1) if tries <= 8 else sorted({*(2 ** np.arange(int(math.log2(tries)) + 1)), tries})
    rows = [[case, *(number(values[n - 1], ".4f") for n in shown)] for case, values in curves.items()]
    return grid(["method", *map(str, shown)], rows)
