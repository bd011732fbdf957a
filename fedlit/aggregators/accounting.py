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

WHOLE = tuple(order for order in ORDERS if order == int(order))
"""Orders whose divergence is a finite sum; that of the others is a series, which takes longer."""

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
    # By theorem 21 of Balle et al., AISTATS 2020, arXiv:1905.09982, epsilon is a convex function of the order, over the
    # order less one. So it has one minimum, and the best order is next to the best whole one.
    place = WHOLE.index(_best(spent, delta, WHOLE)[1])
    first, last = (1, *WHOLE, math.inf)[place : place + 3 : 2]
    return max(_best(spent, delta, tuple(order for order in ORDERS if first <= order <= last))[0], 0.0)


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


def _best(spent: Sequence[Steps], delta: float, orders: tuple[float, ...]) -> tuple[float, float]:
    """Return the least epsilon of some orders, and its order."""
    total = sum((each.steps * _divergences(each.noise, each.rate, orders) for each in spent), np.zeros(len(orders)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or last: the bound holds for any order
        epsilon, order = _rdp().get_privacy_spent(orders=orders, rdp=total, delta=delta)
    return float(epsilon), float(order)


@cache
def _divergences(noise: float, rate: float, orders: tuple[float, ...]) -> np.ndarray:
    return _rdp().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


def _rdp() -> Any:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise ConfigError(f"DPSGD needs Opacus ({error}): pip install 'fedlit[privacy]'") from error
    return rdp
