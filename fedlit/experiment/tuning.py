"""The choice of settings for several methods under one budget: the plan of the tries, and the choice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.experiment.grid import RESERVED_KEYS, PlannedRun, Sweep, plan
from fedlit.experiment.mistakes import SweepSources, near
from fedlit.experiment.naming import as_option
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.parser import Parser
from fedlit.experiment.ranges import Choice, Range, combinations, read_range
from fedlit.experiment.rule import Rule
from fedlit.experiment.samplers import first_points, next_point
from fedlit.experiment.sweep import load_planned, log_groups, run_all
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import BUDGET, STAGE


@dataclass(frozen=True)
class Tuning:
    """The settings of several methods, chosen with the same number of tries.

    Args:
        experiment: Name of the tuning, and of the group of its runs, on disk and in MLflow.
        cases: The methods, each with its own keys. Its key ``ranges`` has ranges of only this method; null removes a
            shared one.
        seeds: Seeds of the final runs, different from those of the rule.
        tries: Number of settings that are tried for every method. A grid tries all.
        rule: The rule by which settings are chosen.
        ranges: Ranges for all methods: lists of values by key, or ``{low: 0.001, high: 1, scale: log}``. The first try
            has the ``default`` of each range that has one.
        sampler: ``random``, each try from another of equal parts of each range; ``grid``, which tries all combinations;
            or ``tpe``, formerly ``optuna``, which after three random tries suggests others from the results.
        search_seed: Seed of the draws.
        config: YAML files from which all runs start, relative to this file.
        set: Keys for all runs.
        run_dir: Folder of all runs: RUN_DIR/EXPERIMENT/NAME/.
        file: This file, for messages.

    Raises:
        ConfigError: A range, a seed or a number of tries does not fit; names the file and the key.
    """

    experiment: str
    cases: dict[str, dict[str, Any]]
    seeds: list[int]
    tries: int | None = None
    rule: Rule = field(default_factory=Rule)
    ranges: dict[str, Any] = field(default_factory=dict)
    sampler: Literal["random", "grid", "tpe", "optuna"] = "random"
    search_seed: int = 0
    config: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    run_dir: str = "runs"
    file: Path | None = None

    def __post_init__(self) -> None:
        for key, values in (("cases", self.cases), ("seeds", self.seeds), ("rule.seeds", self.rule.seeds)):
            if not values:
                raise ConfigError(f"{key}: expected at least one, found none; add one")
            if len(set(values)) < len(values):
                raise ConfigError(f"{key}: expected different seeds, found {values}; remove the repeated one")
        if both := sorted({*self.seeds} & {*self.rule.seeds}):
            raise ConfigError(
                f"seeds: expected final seeds that differ from rule.seeds, found {both[0]} in both; the final runs "
                "must not repeat what the choice has seen, so choose another seed"
            )
        if self.sampler == "optuna":
            object.__setattr__(self, "sampler", "tpe")
        if self.sampler != "grid" and (self.tries is None or self.tries < 1):
            raise ConfigError(f"tries: expected a number of at least 1, found {self.tries}; or set sampler: grid")
        if self.sampler == "grid" and len({combinations(ranges) for ranges in self.ranges_of.values()}) > 1:
            sizes = ", ".join(f"{case}: {combinations(ranges)}" for case, ranges in self.ranges_of.items())
            raise ConfigError(
                f"ranges: expected grids of the same size, found {sizes}; every method gets the same number of tries, "
                "so set sampler: random and tries"
            )

    @cached_property
    def ranges_of(self) -> dict[str, dict[str, Range]]:
        """The ranges of each method, by case and key.

        Raises:
            ConfigError: A method has no range, or one that is not valid.
        """
        ranges = {}
        for case, keys in self.cases.items():
            of_case = keys.get("ranges") or {}
            if not isinstance(of_case, Mapping):
                raise ConfigError(f"{self._where('ranges', case)}: expected ranges by key, found {as_option(of_case)}")
            merged = {key: value for key, value in {**self.ranges, **of_case}.items() if value is not None}
            if not merged:
                raise ConfigError(f"cases.{case}: expected at least one range, found none; add ranges")
            if reserved := [key for key in merged if key.split(".")[0] in RESERVED_KEYS]:
                raise ConfigError(f"{self._where(reserved[0], case)}: expected a setting of the method; leave it out")
            ranges[case] = {key: read_range(value, self._where(key, case)) for key, value in merged.items()}
        return ranges

    @cached_property
    def first_points(self) -> dict[str, list[dict[str, Any]]]:
        """The settings that are tried for each method before there are results, in order.

        Raises:
            ConfigError: A grid has a span, or fewer combinations than tries.
        """
        return {case: self._first_points(case, ranges) for case, ranges in self.ranges_of.items()}

    def _first_points(self, case: str, ranges: Mapping[str, Range]) -> list[dict[str, Any]]:
        number = combinations(ranges)
        if self.sampler == "grid":
            if number is None:
                raise ConfigError(
                    f"sampler ({case}): expected random if a range has low and high, found grid; change it"
                )
            if self.tries not in (None, number):
                raise ConfigError(
                    f"tries ({case}): expected {number}, the number of combinations of the grid, found {self.tries}; "
                    "leave it out, or set sampler: random"
                )
        return first_points(self.sampler, ranges, self.tries or number, self.search_seed, f"tries ({case})")

    @property
    def number(self) -> int:
        """Number of tries of each method."""
        return self.tries or len(next(iter(self.first_points.values())))

    def _where(self, key: str, case: str) -> str:
        place = SweepSources((), self.file, case).where(key.replace(".init_args", "").rstrip("+"))
        return f"ranges.{key} ({place})" if place else f"ranges.{key}"

    @property
    def directory(self) -> Path:
        """Folder of the runs."""
        return Path(self.run_dir) / self.experiment

    def runs(
        self, stage: Literal["try", "final"], points: Mapping[str, Sequence[Mapping[str, Any]]], parser: Parser
    ) -> dict[str, list[PlannedRun]]:
        """Return the runs of a stage by case, in the order of the points and then of the seeds."""
        seeds = self.rule.seeds if stage == "try" else self.seeds
        return {case: plan(self._sweep(case, stage, points[case], seeds), parser) for case in self.cases}

    def suggest(self, case: str, points: Sequence[dict[str, Any]], runs: Sequence[PlannedRun]) -> dict[str, Any]:
        """Return the settings that Optuna tries next for a method, from its tries so far."""
        scores = (self.rule.sign * self.rule.scores(runs)).tolist()
        return next_point(self.ranges_of[case], points, scores, self.search_seed)

    def _sweep(self, case: str, stage: str, points: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Sweep:
        number, ranges = len(self.rule.seeds), self.ranges_of[case]
        budget = f"{self.number} tries" + (f" with {number} seeds each" if number > 1 else "")
        return Sweep(
            self.experiment,
            self.config,
            self.set,
            {case: {key: value for key, value in self.cases[case].items() if key != "ranges"}},
            # Names of values of a list depend on all of them, those of numbers do not.
            {k: r.values if isinstance(r, Choice) else [each[k] for each in points] for k, r in ranges.items()},
            seeds=list(seeds),
            metric=self.rule.metric,
            run_dir=self.run_dir,
            file=self.file,
            points=points,
            tags={STAGE: stage, BUDGET: budget},
        )


@dataclass(frozen=True)
class Tuned:
    """A method whose tries have run."""

    case: str  # Name of the method.
    points: list[dict[str, Any]]  # The settings that were tried, in order.
    scores: list[float]  # The rule's metric of each try, averaged over its seeds; NaN for a failed one.
    runs: list[PlannedRun]  # Runs of the tries.
    best: int  # Index of the chosen settings.
    note: str = ""  # Sentences on the classes with too few patients for the choice, or "".

    @property
    def chosen(self) -> dict[str, Any]:
        """The chosen settings."""
        return self.points[self.best]


def load_tuning(path: str | Path) -> Tuning:
    """Read the YAML of a tuning.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value does not fit; names the place.
    """
    tuning = load_planned(Path(path), Tuning, "tune", ("set", "cases", "ranges"), {"file"})
    try:
        tuning.first_points  # noqa: B018  # with the lines of the file
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return tuning


def run_tuning(tuning: Tuning, jobs: int, console: Console) -> tuple[list[Tuned], pd.DataFrame]:
    """Run the tries, choose, and run the chosen settings with the final seeds; finished runs are skipped.

    Returns:
        The methods in order, and the table of the final runs as in :func:`run_all`.

    Raises:
        ConfigError: A run has a mistake, and none has been started; or no try of a method has a value of the metric.
        CheckpointError: A run of the same name has another configuration; no run has been started.
    """
    parser = experiment_parser()
    points = tuning.first_points
    tries = tuning.runs("try", points, parser)
    # The final runs of any winner could be planned: mistakes that only they have are found before the tries start.
    tuning.runs("final", {case: each[:1] for case, each in points.items()}, parser)
    console.print("tries:")
    tried: list[str] = []
    while True:
        flat = [run for runs in tries.values() for run in runs]
        run_all(flat, tuning.directory / "tries.csv", tuning.rule.metric, jobs, console, tried)
        tried = [run.name for run in flat]
        if all(len(each) == tuning.number for each in points.values()):
            break
        suggested = {case: [tuning.suggest(case, points[case], tries[case])] for case in points}
        more = tuning.runs("try", suggested, parser)
        points = {case: [*points[case], *suggested[case]] for case in points}
        tries = {case: [*tries[case], *more[case]] for case in points}
    tuned = [choose(case, tuning, points[case], runs) for case, runs in tries.items()]
    for each in tuned:
        console.print(f"{each.case}: {as_text(each.chosen)} (score {each.scores[each.best]:.4f})")
    for note in noted(tuned):
        console.print(note, style="yellow")
    console.print("final runs:")
    finals = tuning.runs("final", {each.case: [each.chosen] for each in tuned}, parser)
    flat = [run for runs in finals.values() for run in runs]
    table = run_all(flat, tuning.directory / "finals.csv", "test/federation/auroc_macro", jobs, console)
    log_groups(finals, tries)
    return tuned, table


def choose(case: str, tuning: Tuning, points: Sequence[dict[str, Any]], runs: Sequence[PlannedRun]) -> Tuned:
    """Return a method with its best settings; the first ones in a tie.

    Raises:
        ConfigError: No try has a value of the rule's metric.
    """
    rule, scores = tuning.rule, tuning.rule.scores(runs)
    if np.isnan(scores).all():
        logged = {key for run in runs for _, key, _ in MetricsFile(run.directory / "metrics.csv").rows()}
        raise ConfigError(
            f"rule.metric: no try of {case} has finished with a value of {rule.metric}{near(rule.metric, logged)}; the "
            f"output of its runs is in {runs[0].directory.parent}"
        )
    best, note = int(np.nanargmax(rule.sign * scores)), rule.evidence(runs).note
    return Tuned(case, list(points), scores.tolist(), list(runs), best, note)


def noted(tuned: Sequence[Tuned]) -> list[str]:
    """Return what is to know of the classes that count, once for all methods to which it applies."""
    methods: dict[str, list[str]] = defaultdict(list)
    for each in tuned:
        methods[each.note].append(each.case)
    return [f"{', '.join(cases)}: {note}" if len(methods) > 1 else note for note, cases in methods.items() if note]


def as_text(point: Mapping[str, Any]) -> str:
    """Return settings on one line."""
    return ", ".join(f"{key} {as_option(value)}" for key, value in point.items())
