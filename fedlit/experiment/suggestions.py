"""Tries that Optuna suggests from the results of earlier ones."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedlit.core.errors import ConfigError
from fedlit.experiment.naming import as_option
from fedlit.experiment.ranges import Range, Span

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANDOM_TRIES = 3
"""Number of random tries before the first suggestion."""

ATTEMPTS = 20
"""Number of suggestions after which a random try is taken if all of them repeat earlier tries."""


def require_optuna() -> None:
    """Raise a ConfigError unless Optuna is installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "sampler: expected random or grid, as Optuna is not installed here, found optuna; pip install "
            "'fedlit[optuna]'"
        )


def suggested_point(
    ranges: Mapping[str, Range],
    points: Sequence[Mapping[str, Any]],
    scores: Sequence[float],
    seed: int,
    drawn: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the next settings to try, by Optuna's tree-structured Parzen estimator (TPE).

    They depend only on the arguments, so a tuning that is repeated or continued has the same tries. The highest of the
    ``scores`` of earlier tries, ``points``, is the best; nothing is learned from a failed try, NaN. Of ``drawn``, more
    random tries than ``points``, the first new one replaces a suggestion that is not new.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {key: _space(values) for key, values in ranges.items()}
    texts = {key: list(map(as_option, values)) for key, values in ranges.items() if not isinstance(values, Span)}
    tried = {as_option(point) for point in points}  # as text, because 1 equals true
    for attempt in range(ATTEMPTS):
        draw = ((seed * 1000 + len(points)) * ATTEMPTS + attempt) % 2**32  # NumPy takes no other seeds
        sampler = optuna.samplers.TPESampler(n_startup_trials=0, seed=draw)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        for point, score in zip(points, scores, strict=True):
            params = {k: texts[k].index(as_option(point[k])) if k in texts else point[k] for k in ranges}
            if not math.isnan(score):
                study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=score))
        params = study.ask(spaces).params
        point = {k: each.near(params[k]) if isinstance(each, Span) else each[params[k]] for k, each in ranges.items()}
        if as_option(point) not in tried:
            return point
    return next(dict(point) for point in drawn if as_option(point) not in tried)


def _space(values: Range) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, Span):
        return CategoricalDistribution(range(len(values)))
    kind = IntDistribution if values.integer else FloatDistribution
    number = int if values.integer else float
    return kind(number(values.low), number(values.high), log=values.scale == "log")
