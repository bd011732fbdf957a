"""Epsilon of private steps, by the accountants of Opacus, and the noise for a given epsilon."""

import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedlit.core.errors import ConfigError

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 72, 96, 128, 192, 256, 512)
"""Orders of Renyi divergence, of which the best counts: those of Opacus, and larger ones for small epsilons."""

MOST_ENTRIES = 5
"""Largest number of different steps that PRV accounts for: forty take half a minute."""

MOST_EPSILON = 50
"""Largest epsilon that PRV is asked for: larger ones take it a minute, and mean nothing."""


class Steps(NamedTuple):
    """Equal private steps of a client.

    Attributes:
        noise: Standard deviation of the noise, as a multiple of the clipping norm.
        rate: Probability with which a patient is drawn.
        steps: Number of steps.
    """

    noise: float
    rate: float
    steps: int


def epsilon_of(spent: Sequence[Steps], delta: float) -> float:
    """Return an upper bound of epsilon for all of these steps together, by Renyi divergences, which add up."""
    spent = [each for each in spent if each.steps]
    if not spent:
        return 0.0
    if any(each.noise == 0 for each in spent):
        return math.inf
    total = sum((each.steps * _divergences(each.noise, each.rate) for each in spent), np.zeros(len(ORDERS)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the largest: the bound holds for any order
        return max(float(_rdp().get_privacy_spent(orders=ORDERS, rdp=total, delta=delta)[0]), 0.0)


def prv_epsilon_of(spent: Sequence[Steps], delta: float) -> float:
    """Return a closer upper bound of the same, by numerical composition; NaN if that takes too long."""
    spent = [each for each in spent if each.steps]
    if not spent or any(each.noise == 0 for each in spent):
        return epsilon_of(spent, delta)
    if len(spent) > MOST_ENTRIES or epsilon_of(spent, delta) > MOST_EPSILON:
        return math.nan
    return _prv(tuple(spent), delta)


def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the least noise, up to 0.1%, with which so many steps cost at most epsilon."""
    low, high = 0.0, 1.0
    while epsilon_of([Steps(high, rate, steps)], delta) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise ConfigError(f"DPSGD: no noise gives epsilon {epsilon:g} at delta {delta:g}; raise one of them")
    while high > 1.001 * low:
        middle = (low + high) / 2
        if epsilon_of([Steps(middle, rate, steps)], delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


@cache
def _prv(spent: tuple[Steps, ...], delta: float) -> float:
    """Return PRV's bound, which a run prints, charts and records: it takes a third of a second."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(each.noise, min(each.rate, 1 - 1e-9), each.steps) for each in spent]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(accountant.get_epsilon(delta))
    except (RuntimeError, ValueError):  # it cannot discretise extreme settings
        return math.nan


@cache
def _divergences(noise: float, rate: float) -> np.ndarray:
    return _rdp().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS)


def _rdp() -> Any:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise ConfigError(f"DPSGD needs Opacus ({error}): pip install 'fedlit[privacy]'") from error
    return rdp
