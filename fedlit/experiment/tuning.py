"""The choice of settings for several methods under one budget: the runs of the tries, and the choice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.experiment.cluster.submission import Slurm
from fedlit.experiment.grid import combinations_of, plan
from fedlit.experiment.mistakes import near
from fedlit.experiment.naming import as_option, shortest
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.parser import Parser
from fedlit.experiment.plan import Plan, load_plan, options_of
from fedlit.experiment.planned_run import PlannedRun
from fedlit.experiment.ranges import Choice, Range, combinations
from fedlit.experiment.samplers import Point, first_points, next_point
from fedlit.experiment.sweep import log_groups, run_all, run_starts
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import BUDGET, CHOSEN, STAGE

Stage = Literal["try", "final"]


def first_points_of(tuning: Plan) -> dict[str, list[Point]]:
    """Return the settings that are tried for each method before there are results, in order.

    Raises:
        ConfigError: A grid has a span, or a method has fewer combinations than tries.
    """
    return {case: _first_points(tuning, case, ranges) for case, ranges in tuning.ranges_of.items()}


def _first_points(tuning: Plan, case: str, ranges: Mapping[str, Range]) -> list[Point]:
    number = combinations(ranges)
    if tuning.sampler == "grid":
        if number is None:
            raise ConfigError(f"sampler ({case}): expected random if a range has low and high, found grid; change it")
        if tuning.tries not in (None, number):
            raise ConfigError(
                f"tries ({case}): expected {number}, the number of combinations of the grid, found {tuning.tries}; "
                "leave it out, or set sampler: random"
            )
    return first_points(tuning.sampler, ranges, tuning.tries or number, tuning.search_seed, f"tries ({case})")


def number_of_tries(tuning: Plan) -> int:
    """Return the number of tries of each method."""
    return tuning.tries or combinations(next(iter(tuning.ranges_of.values())))


def runs_of(
    tuning: Plan, stage: Stage, points: Mapping[str, Sequence[Point]], parser: Parser
) -> dict[str, list[PlannedRun]]:
    """Return the runs of a stage by case, in the order of the points, of the grid, and then of the seeds."""
    plans = plans_of(tuning, stage, points)
    starts = next(iter(plans.values())).bodies  # the same for all
    bodies = plan(starts, parser) if starts else []
    runs = {case: plan(of_case, parser, bodies) for case, of_case in plans.items()}
    if stage == "try" and tuning.rule.experiment:  # tries of different methods may have the same names
        runs = {case: [replace(r, name=f"{r.directory.parent.name},{r.name}") for r in of] for case, of in runs.items()}
    return runs


def plans_of(tuning: Plan, stage: Stage, points: Mapping[str, Sequence[Point]]) -> dict[str, Plan]:
    """Return the plan of each method's runs of a stage.

    Raises:
        ConfigError: The plan leaves out a combination that it does not have.
    """
    seeds = tuning.seeds_of_tries
    budget = f"{number_of_tries(tuning)} tries"
    if tuning.rule.by == "seed":
        budget += " by each seed"
    elif len(seeds) > 1:
        budget += f" with {len(seeds)} seeds each"
    plans, known = {}, set()
    for case, ranges in tuning.ranges_of.items():
        # Names of values of a list depend on all of them, those of numbers do not.
        grid = {
            k: r.keys or r.values if isinstance(r, Choice) else [p[k] for p in points[case]] for k, r in ranges.items()
        }
        written = {key: value for key, value in tuning.cases[case].items() if key not in ("labels", "ranges")}
        keys = {"labels": tuning.cases[case].get("labels", {}), **options_of(written)}
        of_case = replace(
            tuning, cases={case: keys}, ranges={}, grid=grid, names="", leave_out=[], points=points[case],
            metric=tuning.rule.metric, seeds=seeds, tags={STAGE: stage, BUDGET: budget},
        )  # fmt: skip
        if stage == "final":
            combined = [dict(zip(tuning.grid, values, strict=True)) for values in product(*tuning.grid.values())]
            every = [point | each for point in points[case] for each in combined]
            of_case = replace(of_case, seeds=tuning.seeds, grid=grid | tuning.grid, names=tuning.names, points=every)
            own = {each.case for each in combinations_of(of_case)}
            known |= own
            of_case = replace(of_case, leave_out=[name for name in tuning.leave_out if name in own])
        elif tuning.rule.experiment:
            names = "-".join(f"{short.lower()}-{{{short}}}" for short in shortest([*grid]).values())
            own = tuning.experiment_of_tries(case)
            of_case = replace(of_case, experiment=own, names=names)
        if stage == "try":
            of_case = replace(of_case, cases={case: keys | options_of(tuning.rule.set)})
        if tuning.starts:
            vars(of_case)["bodies"] = tuning.bodies  # which depend on the seeds of both stages
        plans[case] = of_case
    if stage == "final" and (unknown := [name for name in tuning.leave_out if name not in known]):
        raise ConfigError(f"leave_out: expected names among {', '.join(sorted(known))}, found {unknown[0]}")
    return plans


@dataclass(frozen=True)
class Chosen:
    """Settings of a method that were chosen."""

    place: int  # Index of the settings.
    seeds: tuple[int, ...]  # Final seeds that run with them.
    score: float  # The rule's metric in the tries that chose them.


@dataclass(frozen=True)
class Tuned:
    """A method whose tries have run."""

    case: str  # Name of the method.
    points: list[Point]  # The settings that were tried, in order.
    scores: list[list[float]]  # The rule's metric of each try as in `Rule.scores`; NaN for a failed one.
    runs: list[PlannedRun]  # Runs of the tries, in the order of the settings and then of the seeds.
    chosen: list[Chosen]  # One, unless each seed chooses.
    note: str = ""  # Sentences on the classes with too few patients for the choice, or "".


def load_tuning(path: str | Path) -> Plan:
    """Read the YAML of a tuning.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value does not fit; names the place.
    """
    tuning = load_plan(path, "tune")
    try:
        first_points_of(tuning)  # with the lines of the file
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return tuning


def run_tuning(tuning: Plan, jobs: int | Slurm, console: Console) -> tuple[list[Tuned], pd.DataFrame]:
    """Run the tries, choose, and run the chosen settings with the final seeds; finished runs are skipped.

    Returns:
        The methods in order, and the table of the final runs as in :func:`run_all`.

    Raises:
        ConfigError: A run has a mistake, and none has been started; or no try of a method has a value of the metric.
        CheckpointError: A run of the same name has another configuration; no run has been started.
    """
    parser = experiment_parser()
    points = first_points_of(tuning)
    with console.status(f"checking the settings of {tuning.experiment}"):
        tries = runs_of(tuning, "try", points, parser)
        # The final runs of any winner could be planned: mistakes that only they have are found before the tries start.
        if tuning.rule.by == "method":
            runs_of(tuning, "final", {case: each[:1] for case, each in points.items()}, parser)
    run_starts(tuning, jobs, console)
    console.print("tries:")
    tried: list[str] = []
    while True:
        flat = [run for runs in tries.values() for run in runs]
        of_tries = run_all(flat, tuning.table, tuning.rule.metric, jobs, console, tried)
        tried = [run.name for run in flat]
        if all(len(each) == number_of_tries(tuning) for each in points.values()):
            break
        suggested = {case: [_suggested(tuning, case, points[case], tries[case])] for case in points}
        more = runs_of(tuning, "try", suggested, parser)
        points = {case: [*points[case], *suggested[case]] for case in points}
        tries = {case: [*tries[case], *more[case]] for case in points}
    tuned = [choose(case, tuning, points[case], runs) for case, runs in tries.items()]
    for each in tuned:
        for chosen in each.chosen:
            whose = f" ({as_list(chosen.seeds)})" if tuning.rule.by == "seed" else ""
            console.print(f"{each.case}{whose}: {as_text(each.points[chosen.place])} (score {chosen.score:.4f})")
    for note in noted(tuned):
        console.print(note, style="yellow")
    console.print("final runs:")
    finals = _finals(tuning, tuned, parser)
    flat, of_tries = [run for runs in finals.values() for run in runs], _scored(of_tries, tuned)
    if tuning.rule.by == "seed":
        of_tries = of_tries[~of_tries["name"].isin([run.name for run in flat])]
    table = run_all(flat, tuning.table, tuning.metric, jobs, console, above=of_tries)
    if tuning.grid or tuning.names or tuning.rule.experiment:
        groups = defaultdict(list)
        for run in flat:
            groups[run.group].append(run)
        log_groups(groups)
    else:
        log_groups(finals, tries)
    return tuned, table


def _scored(tries: pd.DataFrame, tuned: Sequence[Tuned]) -> pd.DataFrame:
    """Add to the table of the tries the score of each one's settings, and whether they were chosen."""
    scores, chosen = {}, {}
    for each in tuned:
        for number, run in enumerate(each.runs):
            place, seed = divmod(number, len(each.runs) // len(each.points))
            of_place = each.scores[place]
            scores[run.name] = of_place[min(seed, len(of_place) - 1)]
            whose = [one.seeds for one in each.chosen if one.place == place]
            chosen[run.name] = bool(whose) and (len(of_place) == 1 or run.seed in whose[0])
    return tries.assign(score=tries["name"].map(scores), chosen=tries["name"].map(chosen))


def _suggested(tuning: Plan, case: str, points: Sequence[Point], runs: Sequence[PlannedRun]) -> Point:
    scores = tuning.rule.scores([run.directory for run in runs], len(tuning.seeds_of_tries))
    return next_point(tuning.ranges_of[case], points, (tuning.rule.sign * scores[:, 0]).tolist(), tuning.search_seed)


def _finals(tuning: Plan, tuned: Sequence[Tuned], parser: Parser) -> dict[str, list[PlannedRun]]:
    """Return the final runs by case: those of the chosen settings, or the tries that the seeds have chosen."""
    if tuning.rule.by == "method":
        return runs_of(tuning, "final", {each.case: [each.points[each.chosen[0].place]] for each in tuned}, parser)
    finals = {}
    for each in tuned:
        places = {seed: chosen.place for chosen in each.chosen for seed in chosen.seeds}
        by_seed = [each.runs[number :: len(tuning.seeds)] for number in range(len(tuning.seeds))]
        chosen_runs = [runs[places[seed]] for seed, runs in zip(tuning.seeds, by_seed, strict=True)]
        finals[each.case] = [replace(run, stage=CHOSEN) for run in chosen_runs]
    return finals


def choose(case: str, tuning: Plan, points: Sequence[Point], runs: Sequence[PlannedRun]) -> Tuned:
    """Return a method with its best settings, or those of each seed if seeds choose; the first ones in a tie.

    Raises:
        ConfigError: No try has a value of the rule's metric, or none with one of the seeds that choose.
    """
    rule, directories = tuning.rule, [run.directory for run in runs]
    scores = rule.scores(directories, len(tuning.seeds_of_tries))
    if (empty := np.isnan(scores).all(axis=0)).any():
        whose = f" with seed {tuning.seeds[empty.argmax()]}" if rule.by == "seed" else ""
        logged = {key for run in runs for _, key, _ in MetricsFile(run.directory / "metrics.csv").rows()}
        raise ConfigError(
            f"rule.metric: no try of {case}{whose} has finished with a value of {rule.metric}"
            f"{near(rule.metric, logged)}; the output of its runs is in {runs[0].directory.parent}"
        )
    best = rule.choose(scores)
    seeds = [(seed,) for seed in tuning.seeds] if rule.by == "seed" else [tuple(tuning.seeds)]
    chosen = []
    for place in dict.fromkeys(best):
        chose = [number for number, each in enumerate(best) if each == place]
        of_seeds = tuple(seed for number in chose for seed in seeds[number])
        chosen.append(Chosen(place, of_seeds, fmean(scores[place, chose].tolist())))
    return Tuned(case, list(points), scores.tolist(), list(runs), chosen, rule.evidence(directories).note)


def noted(tuned: Sequence[Tuned]) -> list[str]:
    """Return what is to know of the classes that count, once for all methods to which it applies."""
    methods: dict[str, list[str]] = defaultdict(list)
    for each in tuned:
        methods[each.note].append(each.case)
    return [f"{', '.join(cases)}: {note}" if len(methods) > 1 else note for note, cases in methods.items() if note]


def as_list(seeds: Sequence[int]) -> str:
    """Return seeds as words: ``seed 3``, or ``seeds 0, 2``."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def as_text(point: Mapping[str, Any]) -> str:
    """Return settings on one line."""
    return ", ".join(f"{key} {as_option(value)}" for key, value in point.items())
