"""Epsilon of private steps, against figures of another library."""

import math
import sys

import pytest
from refusals import refused

from fedlit.core.errors import ConfigError

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedlit[privacy]'")

from fedlit.aggregators.accounting import ORDERS, Steps, epsilon_of, noise_for, prv_epsilon_of

EXACT = {
    (10.0, 1.0, 100, 1e-5): 4.3772, (1.0, 0.15, 140, 1e-3): 9.2679,
    (5.0, 0.15, 140, 1e-3): 0.9247, (0.8, 0.004, 5000, 1e-6): 2.9073,
}  # fmt: skip
"""Epsilon by noise, rate, steps and delta: PLDAccountant of dp-accounting 0.6."""


@pytest.mark.parametrize("setting", EXACT)
def test_both_bounds_are_above_the_privacy_loss_distribution_and_prv_is_close(setting):
    *steps, delta = setting
    rdp, prv = (bound([Steps(*steps)], delta) for bound in (epsilon_of, prv_epsilon_of))
    assert EXACT[setting] <= prv <= 1.03 * EXACT[setting]
    assert EXACT[setting] <= rdp <= 1.35 * EXACT[setting]


@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "best"),
    [
        (0.3, 0.002, 10, 0.1, 1.8), (0.7, 1.0, 1, 1e-3, 3.1), (0.7, 0.01, 3000, 1e-7, 3.3), (2.0, 1.0, 1, 1e-3, 6.7),
        (2.0, 0.002, 10, 0.1, 10.0), (30.0, 1.0, 1, 1e-3, 63.0), (30.0, 0.01, 3000, 1e-7, 256.0),
        (0.3, 1.0, 140, 1e-5, 1.1), (150.0, 1.0, 1, 1e-5, 512.0),
    ],
)  # fmt: skip
def test_no_other_order_gives_less(noise, rate, steps, delta, best):
    """Only orders next to the best whole one are tried."""
    rdp = pytest.importorskip("opacus.accountants.analysis.rdp")
    spent = [Steps(noise, rate, steps), Steps(2 * noise, rate, steps)]
    total = sum(rdp.compute_rdp(q=rate, noise_multiplier=n, steps=steps, orders=ORDERS) for n, *_ in spent)
    least, order = rdp.get_privacy_spent(orders=ORDERS, rdp=total, delta=delta)
    assert order == best
    assert epsilon_of(spent, delta) == pytest.approx(max(least, 0.0), rel=1e-12)


def test_steps_add_up():
    whole = epsilon_of([Steps(1.0, 0.1, 60)], 1e-4)
    assert epsilon_of([Steps(1.0, 0.1, 25), Steps(1.0, 0.1, 35)], 1e-4) == pytest.approx(whole)
    assert epsilon_of([Steps(1.0, 0.1, 60), Steps(3.0, 0.1, 60)], 1e-4) > whole
    assert epsilon_of([Steps(1.0, 0.1, 60), Steps(0.0, 0.1, 1)], 1e-4) == math.inf
    assert epsilon_of([], 1e-4) == prv_epsilon_of([Steps(0.0, 0.1, 0)], 1e-4) == 0.0


def test_prv_is_left_out_where_it_takes_long():
    assert math.isnan(prv_epsilon_of([Steps(1 + i, 0.1, 9) for i in range(6)], 1e-4))
    assert math.isnan(prv_epsilon_of([Steps(0.3, 0.15, 1000)], 1e-4))


@pytest.mark.parametrize(("epsilon", "rate"), [(1.0, 32 / 210), (8.0, 1.0)])
def test_noise_for_an_epsilon_spends_it_and_no_more(epsilon, rate):
    noise = noise_for(epsilon, 1e-3, rate, 140)
    assert 0.99 * epsilon < epsilon_of([Steps(noise, rate, 140)], 1e-3) <= epsilon


def test_without_opacus_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with refused(ConfigError, "DPSGD needs Opacus", "pip install 'fedlit[privacy]'"):
        noise_for(3.0, 1e-3, 0.123, 10)


def test_no_noise_is_enough_for_an_epsilon_of_nothing():
    with refused(ConfigError, "epsilon", "1e-09"):
        noise_for(1e-9, 1e-300, 1.0, 1000)
