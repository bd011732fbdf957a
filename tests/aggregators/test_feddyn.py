"""FedDyn against Algorithm 1 of Acar et al. written by hand, and its fixed point."""

import torch
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from toys import Problems, Quadratic, SaddleModule

from fedlit.aggregators import FedDyn
from fedlit.core.messages import ServerState

ALPHA = 0.4


def test_three_rounds_equal_algorithm_1_by_hand():
    done, hand = trained_by_fedlit([FedDyn(ALPHA)], rounds=4)
    gradients, h = {k: hand.zeros() for k in hand.pi}, hand.zeros()
    for cohort in done.cohorts:
        start, ends = dict(hand.x), {}
        for k in cohort:

            def regularised(name, g, y, k=k, start=start):
                return g + hand.owns[k][name] * (ALPHA * (y - start[name]) - gradients[k][name])

            ends[k] = hand.local(k, start, regularised)
        changes = {k: {n: hand.owns[k][n] * (ends[k][n] - start[n]) for n in hand.trained} for k in cohort}
        for name in hand.trained:
            for k in cohort:
                gradients[k][name] = gradients[k][name] - ALPHA * changes[k][name]
            everyone = sum(hand.pi[k] * hand.owns[k][name] for k in hand.pi)
            owned = sum(hand.owns[k][name] for k in cohort) > 0
            h[name] = h[name] - ALPHA * sum(hand.pi[k] * changes[k][name] for k in cohort) / everyone
            mean = hand.mean(cohort, ends, name)
            hand.x[name] = torch.where(owned, mean - h[name] / ALPHA, hand.x[name])
        hand.average_statistics(cohort, ends)
    assert_equal(done, hand)
    h_k = {k: done.parameters(state.aggregators[0]["h"]) for k, state in done.states.items()}
    for name, tensor in done.parameters(done.server.aggregators[0]["h"]).items():
        torch.testing.assert_close(tensor, h[name], rtol=0, atol=1e-9)
        # h is the mean of h_k over all clients that own the element, absent ones included
        everyone = sum(hand.pi[k] * hand.owns[k][name] for k in hand.pi)
        mean = sum(hand.pi[k] * h_k[k][name] for k in h_k) / everyone
        torch.testing.assert_close(mean, h[name], rtol=0, atol=1e-9)


def test_its_fixed_point_is_the_optimum_of_the_mean_where_one_client_trains_at_a_time():
    # f_1 = x^2 / 2, f_2 = 4 (x - 1)^2 / 2: the mean is least at 0.8; FedAvg's fixed point is in test_classics.py
    data = Problems(one=(1.0, 0.0), two=(4.0, 1.0))
    given = federated([FedDyn(2.0)], rounds=32, window=10, participation=0.5)
    reached = simulate(Quadratic(), data, given).server.w
    torch.testing.assert_close(reached, torch.tensor([0.8], dtype=torch.float64), rtol=0, atol=1e-6)


def test_dual_variables_are_averaged():
    """Two rounds of one step: x descends with the regulariser, y ascends without."""
    done = simulate(SaddleModule().double(), Problems(one=(2.0, 1.0)), federated([FedDyn(0.5)], rounds=2, window=1))
    x, y, h = 1.0, 1.0, 0.0
    for _ in range(2):
        step_x, step_y = -0.1 * (2 * x + y - h), 0.1 * (x - y)
        h -= 0.5 * step_x
        x, y = x + step_x - h / 0.5, y + step_y
    torch.testing.assert_close(done.server.w, torch.tensor([x, y], dtype=torch.float64), rtol=0, atol=1e-12)


def test_other_clients_start_from_zero():
    state = {"h": torch.ones(3)}
    assert FedDyn().on_clients_change(state, ServerState)
    assert not state["h"].any()
