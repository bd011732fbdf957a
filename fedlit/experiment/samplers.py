"""Settings that Optuna draws: of a grid, at random from equal parts of each range, or from the results of earlier ones.

They depend only on the arguments, so a tuning that is repeated or continued has the same tries.
"""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.samplers import BaseSampler, GridSampler, TPESampler
from optuna.trial import create_trial

from fedlit.core.errors import ConfigError
from fedlit.experiment.naming import as_option
from fedlit.experiment.ranges import Range, combinations, defaults

Sampler = Literal["random", "grid", "tpe"]
Point = dict[str, Any]
"""Values by key."""

RANDOM_TRIES = 3
"""Number of random tries before the first suggestion of ``tpe``."""

ATTEMPTS = 20
"""Number of draws, or suggestions, of which one has to be new."""


class Stratified(BaseSampler):
    """A Latin hypercube: in each range, each try is from another of as many equal parts as there are tries.

    Each key has its own stream of draws, so methods that share a range share its values.
    """

    def __init__(self, ranges: Mapping[str, Range], tries: int, seed: str) -> None:
        self.drawn: dict[str, list[Any]] = {}
        for key, each in ranges.items():
            stream = random.Random(f"{seed} {key}")
            parts = stream.sample(range(tries), tries)
            if each.default is not None:
                first = parts.index(each.part(each.default, tries))
                parts[0], parts[first] = parts[first], parts[0]
            values = [each.drawn(part, tries, stream) for part in parts]
            self.drawn[key] = [each.index(value) for value in values]

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return no keys: each is drawn independently."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Return no values."""
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Return the value of a key in a try."""
        return self.drawn[param_name][trial.number]


def first_points(sampler: Sampler, ranges: Mapping[str, Range], tries: int, seed: int, where: str) -> list[Point]:
    """Return the tries of a method before there are results, all different; the first one has the defaults.

    Raises:
        ConfigError: The ranges have fewer combinations than tries; begins with ``where``.
    """
    number = combinations(ranges)
    if number is not None and number < tries:
        raise ConfigError(
            f"{where}: expected at most {number}, the number of combinations of {', '.join(ranges)}, found {tries}; "
            "lower it, or add values"
        )
    if sampler == "grid" or number == tries:
        return _grid(ranges, seed)
    count = min(tries, RANDOM_TRIES) if sampler == "tpe" else tries
    for attempt in range(ATTEMPTS):
        stratified = Stratified(ranges, count, f"{seed}" + f" {attempt}" * (attempt > 0))
        points = _asked(ranges, stratified, count, defaults(ranges))
        if len({*map(as_option, points)}) == count:
            return points
    if number is None:
        raise ConfigError(f"{where}: expected fewer than {tries} or wider ranges, as values repeat; change one of them")
    return _grid(ranges, seed)[:count]  # almost all combinations


def next_point(ranges: Mapping[str, Range], points: Sequence[Point], scores: Sequence[float], seed: int) -> Point:
    """Return the next settings to try, by Optuna's tree-structured Parzen estimator (TPE).

    The highest of the ``scores`` of earlier tries, ``points``, is the best; nothing is learned from a failed try, NaN.
    If no suggestion is new, another combination is drawn.
    """
    tried = {as_option(point) for point in points}  # as text, because 1 equals true
    told = [
        create_trial(
            params={key: each.index(point[key]) for key, each in ranges.items()},
            distributions={key: each.space for key, each in ranges.items()},
            value=score,
        )
        for point, score in zip(points, scores, strict=True)
        if not math.isnan(score)
    ]
    for attempt in range(ATTEMPTS):
        draw = ((seed * 1000 + len(points)) * ATTEMPTS + attempt) % 2**32  # NumPy takes no other seeds
        (point,) = _asked(ranges, TPESampler(n_startup_trials=0, seed=draw), 1, told=told)
        if as_option(point) not in tried:
            return point
    others = first_points("random", ranges, len(points) + 1, seed, "tries")
    return next(point for point in others if as_option(point) not in tried)


def _grid(ranges: Mapping[str, Range], seed: int) -> list[Point]:
    """Return all combinations in a random order, the defaults first."""
    places = {key: [each.index(value) for value in each.values] for key, each in ranges.items()}
    points = _asked(ranges, GridSampler(places, seed=seed % 2**32), combinations(ranges))
    default = {key: as_option(value) for key, value in defaults(ranges).items()}
    return sorted(points, key=lambda point: any(as_option(point[key]) != text for key, text in default.items()))


def _asked(
    ranges: Mapping[str, Range], sampler: BaseSampler, number: int, first: Mapping[str, Any] = {}, told: Sequence = ()
) -> list[Point]:
    """Return the draws of a sampler after the results of earlier tries; the first one has some given values."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.add_trials(told)
    if first:
        study.enqueue_trial({key: ranges[key].index(value) for key, value in first.items()})
    spaces = {key: each.space for key, each in ranges.items()}
    asked = [study.ask(spaces).params for _ in range(number)]
    points = [{key: each.of(params[key]) for key, each in ranges.items()} for params in asked]
    return [points[0] | first, *points[1:]]  # unrounded
