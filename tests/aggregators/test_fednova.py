"""FedNova against its equations written by hand, and the objective that it is consistent with."""

import pytest
import torch
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from toys import Problems, Quadratic

from fedlit.aggregators import FedAvg, FedNova, FedProx
from fedlit.aggregators.fednova import length
from fedlit.schedules import ConstantSchedule

EPOCH = ConstantSchedule(1, "epochs")


def closed_form(steps: int, rho: float = 0.0, alpha: float = 0.0) -> float:
    """|a|_1 as the paper gives it: for SGD, for momentum rho, for a proximal term with alpha = lr mu."""
    if rho:
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    return (1 - (1 - alpha) ** steps) / alpha if alpha else float(steps)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize(("rho", "alpha"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.04)])
def test_the_length_of_local_training_is_the_papers(steps, rho, alpha):
    assert length(steps, rho, alpha) == pytest.approx(closed_form(steps, rho, alpha), rel=1e-12)


def test_momentum_and_a_pull_together_are_the_sum_of_the_gradients_shares():
    """How much each gradient counts, from steps along one unit gradient after the other."""
    steps, rho, alpha, total = 6, 0.8, 0.1, 0.0
    for impulse in range(steps):
        x = velocity = 0.0
        for t in range(steps):
            velocity = rho * velocity + (t == impulse) - alpha * x
            x += velocity
        total += x
    assert length(steps, rho, alpha) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.5)], ids=["SGD", "momentum", "proximal"])
def test_three_rounds_equal_the_equations_by_hand(rho, mu):
    done, hand = trained_by_fedlit([FedNova(rho), FedProx(mu)], momentum=rho, schedule=EPOCH)
    assert len({hand.steps(k) for k in hand.pi}) > 1
    for cohort in done.cohorts:
        start, total = dict(hand.x), sum(hand.pi[k] for k in cohort)

        def pulled(name, g, y, start=start):
            return g + mu * (y - start[name])

        ends = {k: hand.local(k, start, pulled, rho) for k in cohort}
        lengths = {k: closed_form(hand.steps(k), rho, 0.2 * mu) for k in cohort}
        effective = sum(hand.pi[k] * lengths[k] for k in cohort) / total
        directions = {k: {n: (ends[k][n] - start[n]) / lengths[k] for n in hand.trained} for k in cohort}
        for name in hand.trained:
            hand.x[name] = start[name] + effective * hand.mean(cohort, directions, name)
        hand.average_statistics(cohort, ends)
    assert_equal(done, hand)


def test_two_clients_with_one_and_two_steps_computed_by_hand():
    # (x - b)^2 / 2 from x = 0 at rate 0.1: b = 1, one step, moves by 0.1; b = 3, two steps, by 0.3 + 0.27 = 0.57
    # d = 0.1 / 1 and 0.57 / 2, tau_eff = 1.5: x = 1.5 (0.1 + 0.285) / 2 = 0.28875
    federation = federated([FedNova()], 1, 1, "epochs", weights="uniform")
    done = simulate(Quadratic(), Unequal(one=(1.0, 1.0), two=(1.0, 3.0)), federation)
    torch.testing.assert_close(done.server.w, torch.tensor([0.28875], dtype=torch.float64), rtol=0, atol=1e-12)


class Unequal(Problems):
    """One quadratic per client, with one step per epoch at the first client, two at the second, and so on."""

    def __init__(self, **problems):
        super().__init__(**problems)
        for steps, client in enumerate(self.clients.values(), 1):
            client.train.tensors = tuple(tensor.repeat(2 * steps) for tensor in client.train.tensors)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.5, 0.0), (0.0, 1.0)], ids=["SGD", "momentum", "proximal"])
def test_it_is_consistent_where_fedavg_is_not(rho, mu):
    """Theorem 1: FedAvg converges to the mean weighed by |a_k|_1, here the number of steps; FedNova to the mean.

    Both start between the two points.
    """

    class WithMomentum(Quadratic):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=rho)

    data = Unequal(one=(1.0, 0.0), two=(1.0, 1.0))
    ends = []
    for first in (FedAvg("uniform"), FedNova(rho)):
        federation = federated([first, FedProx(mu)], 12, 2, "epochs", weights="uniform")
        ends.append(float(simulate(WithMomentum(0.58, 0.05), data, federation).server.w))
    averaged, consistent = ends
    lengths = [closed_form(steps, rho, 0.05 * mu) for steps in (2, 4)]
    assert averaged == pytest.approx(lengths[1] / sum(lengths), abs=0.03)
    assert consistent == pytest.approx(0.5, abs=0.03)
    assert averaged > 0.6


def test_equal_numbers_of_steps_are_fedavg_and_slow_clients_count_in_full():
    data = Problems(one=(1.0, 0.0), two=(1.0, 1.0))
    ends = [simulate(Quadratic(), data, federated([a], 2, 2)).server.w for a in (FedNova(), FedAvg())]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    slow = {"rounds": 18, "window": 3, "lr_factors": {"two": 0.2}}
    start = Quadratic(0.33, 0.08)  # between the two points
    ends = [float(simulate(start, data, federated([a], **slow)).server.w) for a in (FedNova(), FedAvg())]
    assert ends[0] == pytest.approx(0.5, abs=0.03)
    assert ends[1] == pytest.approx(1 / 6, abs=0.03)
