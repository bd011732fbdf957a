"""FedDyn against Algorithm 1 of Acar et al. written by hand, and its fixed point."""

import pytest
import torch
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from toys import Problems, Quadratic, SaddleModule

from fedlit.aggregators import FedAvg, FedDyn
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


def test_two_clients_and_two_steps_computed_by_hand():
    # (x - b)^2 / 2 with b = 1 and 3, rate 0.1, alpha = 0.5. Round 1 from 0 with h_k = 0, g = (x - b) + 0.5 x:
    # b = 1: 0.1, 0.1 - 0.1 (-0.9 + 0.05) = 0.185; b = 3: 0.3, 0.3 - 0.1 (-2.7 + 0.15) = 0.555
    # h_k = -0.0925 and -0.2775; h = -0.185; x = 0.37 + 0.37 = 0.74.
    # Round 2 from 0.74, g = (x - b) + 0.5 (x - 0.74) - h_k:
    one = 0.74 - 0.1 * (0.74 - 1 + 0.0925)
    one -= 0.1 * (one - 1 + 0.5 * (one - 0.74) + 0.0925)
    two = 0.74 - 0.1 * (0.74 - 3 + 0.2775)
    two -= 0.1 * (two - 3 + 0.5 * (two - 0.74) + 0.2775)
    h = -0.185 - 0.5 * ((one - 0.74) + (two - 0.74)) / 2
    expected = (one + two) / 2 - h / 0.5
    data = Problems(one=(1.0, 1.0), two=(1.0, 3.0))
    ends = [simulate(Quadratic(), data, federated([FedDyn(0.5)], rounds)).server.w for rounds in (1, 2)]
    torch.testing.assert_close(torch.cat(ends), torch.tensor([0.74, expected], dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_its_fixed_point_is_the_optimum_of_the_mean_and_fedavgs_is_not(participation):
    # f_1 = x^2 / 2, f_2 = 4 (x - 1)^2 / 2: the mean is least at 0.8
    data = Problems(one=(1.0, 0.0), two=(4.0, 1.0))
    many = {"rounds": 40, "window": 10, "participation": participation}
    reached = simulate(Quadratic(), data, federated([FedDyn(2.0)], **many)).server.w
    torch.testing.assert_close(reached, torch.tensor([0.8], dtype=torch.float64), rtol=0, atol=1e-6)
    if participation == 1:
        plain = simulate(Quadratic(), data, federated([FedAvg()], **many)).server.w
        assert abs(float(plain) - 0.8) > 0.1


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
