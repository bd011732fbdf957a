"""Server optimizers against Algorithm 2 of Reddi et al. written by hand, and what they reduce to."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from torch.optim import SGD, Adagrad, Adam, NAdam, RMSprop
from toys import Problems, Quadratic, ToyData, ToyNet

from fedlit.aggregators import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedBN, FedYogi, ServerOptimizer
from fedlit.core.messages import Round
from fedlit.testing import OwnRows


def second_moment(method: str, v: torch.Tensor, delta: torch.Tensor, beta_2: float) -> torch.Tensor:
    """The three lines of Algorithm 2 that differ."""
    return {
        "adagrad": v + delta**2,
        "yogi": v - (1 - beta_2) * delta**2 * torch.sign(v - delta**2),
        "adam": beta_2 * v + (1 - beta_2) * delta**2,
    }[method]


@pytest.mark.parametrize(
    ("method", "aggregator"),
    [
        ("adagrad", FedAdagrad(0.03, 0.4, 0.01)),
        ("yogi", FedYogi(0.03, 0.7, 0.8, 0.01)),
        ("adam", FedAdam(0.03, 0.7, 0.8, 0.01)),
    ],
    ids=["FedAdagrad", "FedYogi", "FedAdam"],
)
def test_three_rounds_equal_algorithm_2_by_hand(method, aggregator):
    done, hand = trained_by_fedlit([aggregator])
    beta_1, m, v = aggregator.beta_1, hand.zeros(), {n: z + 0.01**2 for n, z in hand.zeros().items()}
    for cohort in done.cohorts:
        ends = {k: hand.local(k, hand.x) for k in cohort}
        for name in hand.trained:
            owned = sum(hand.owns[k][name] for k in cohort) > 0
            delta = hand.mean(cohort, ends, name) - hand.x[name] * owned
            new_m = beta_1 * m[name] + (1 - beta_1) * delta
            new_v = second_moment(method, v[name], delta, getattr(aggregator, "beta_2", 0.0))
            step = 0.03 * new_m / (torch.sqrt(new_v) + 0.01)
            m[name], v[name] = torch.where(owned, new_m, m[name]), torch.where(owned, new_v, v[name])
            hand.x[name] = hand.x[name] + torch.where(owned, step, 0.0)
        hand.average_statistics(cohort, ends)
    assert_equal(done, hand)
    kept = done.server.aggregators[0]
    torch.testing.assert_close(done.parameters(kept["m"]), m, rtol=0, atol=1e-9)
    torch.testing.assert_close(done.parameters(kept["v"]), v, rtol=0, atol=1e-9)


def test_two_clients_and_two_rounds_computed_by_hand():
    # One step of rate 0.1 from x on a (x - b)^2 / 2; rounds of both clients. From x = 0:
    # changes 0.1 * 1 * 1 = 0.1 and 0.1 * 2 * 3 = 0.6; delta = 0.35.
    data = Problems(one=(1.0, 1.0), two=(2.0, 3.0))
    settings = {"rounds": 2, "window": 1, "weights": "uniform"}
    done = simulate(Quadratic(), data, federated([FedAdam(0.5, 0.9, 0.99, 0.1)], **settings))
    m, v = 0.1 * 0.35, 0.99 * 0.01 + 0.01 * 0.35**2
    x = 0.5 * m / (v**0.5 + 0.1)
    delta = (0.1 * (1 - x) + 0.2 * (3 - x)) / 2
    m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
    x += 0.5 * m / (v**0.5 + 0.1)
    torch.testing.assert_close(done.server.w, torch.tensor([x], dtype=torch.float64), rtol=0, atol=1e-12)
    # FedAvgM: v = 0.35, x = 0.35; delta = 0.05 (1 - 0.35) + 0.1 (3 - 0.35) = 0.2975; v = 0.5 * 0.35 + 0.2975
    done = simulate(Quadratic(), data, federated([FedAvgM(0.5)], **settings))
    torch.testing.assert_close(done.server.w, torch.tensor([0.8225], dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_root_in_float32_is_the_nearest_number_on_every_processor():
    """NumPy's is, by the standard of IEEE; MKL's root of float32 depends on the processor."""
    aggregator, v, m = FedAdagrad(1.0, 0.5, 1.0), torch.rand(1000) * 10, torch.ones(1000)
    server = SimpleNamespace(delta=torch.zeros(1000))
    rnd = Round(0, 0, 1.0, 1, "steps", 0, first_of_stage=True, last_of_stage=True)
    aggregator.on_aggregate_end({"m": m, "v": v}, server, {}, rnd)
    assert torch.equal(server.delta, 0.5 / (torch.from_numpy(np.sqrt(v.numpy())) + 1.0))


def run(aggregators, precision="32-true", rounds=2, participation=0.5):
    torch.manual_seed(0)
    federation = federated(aggregators, rounds, 3, participation=participation)
    return simulate(ToyNet(), ToyData(4, labelled=2), federation, precision)


@pytest.mark.parametrize("aggregator", [ServerOptimizer(), FedAvgM(0.0)], ids=["SGD with rate 1", "FedAvgM(0)"])
def test_sgd_with_rate_one_is_fedavg_bit_for_bit(aggregator):
    assert torch.equal(run([aggregator, OwnRows()]).server.w, run([FedAvg(), OwnRows()]).server.w)


def test_an_optimizer_of_torch_steps_along_the_pseudo_gradient():
    """Adam's own step on the server's weights, with its weight decay, where all clients take part."""
    weights, deltas = [], []

    class Seen(FedAvg):
        def on_aggregate_end(self, state, server, mean, rnd):
            deltas.append(server.delta.clone())
            weights.append(server.w.clone())

    adam = partial(Adam, lr=0.02, weight_decay=0.1)
    done = run([Seen(), ServerOptimizer(adam)], "64-true", rounds=3, participation=1.0)
    parameter = torch.nn.Parameter(weights[0].clone())
    optimizer = adam([parameter])
    for w, delta in zip(weights, deltas, strict=True):
        torch.testing.assert_close(w, parameter.detach(), rtol=0, atol=1e-12)
        parameter.grad = -delta
        optimizer.step()
    torch.testing.assert_close(done.server.w, parameter.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", [Adam, Adagrad, RMSprop, NAdam, lambda p, lr: SGD(p, lr, 0.9, weight_decay=0.1)])
def test_a_row_that_nobody_owns_stays_with_its_moments(optimizer):
    """Weight decay too, in rounds of all clients: a class without owner, and norm layers that all keep."""

    class TwoClasses(ToyData):
        def setup(self, stage=None):
            super().setup(stage)
            for client in self.clients.values():
                client.classes = tuple(c for c in client.classes if c != "Nodule")
                client.train.tensors[1][:, 2] = torch.nan

    torch.manual_seed(0)
    module = ToyNet()
    server = ServerOptimizer(lambda p: optimizer(p, lr=0.1))
    done = simulate(module, TwoClasses(3), federated([server, OwnRows(), FedBN()], rounds=2), "32-true")
    fresh = server.server_state(done.session.layout, done.start.w)
    for name in ("head.weight", "head.bias", "body.1.weight"):
        still = slice(2, 3) if name.startswith("head") else slice(None)
        assert torch.equal(done.tensor(name)[still], module.get_parameter(name)[still])
        for key, value in done.server.aggregators[0].items():
            if value.shape == done.server.w.shape:
                assert torch.equal(done.tensor(name, value)[still], done.tensor(name, fresh[key])[still])
    assert not torch.equal(done.tensor("head.weight")[:2], module.head.weight[:2])


def test_a_large_tau_makes_all_elements_step_alike():
    """With v near tau^2 the step is lr / (2 tau) of the mean change: FedAdam without memory is FedAvg."""
    adam = run([FedAdam(2e6, 0.0, 1 - 1e-12, 1e6), OwnRows()], "64-true")
    averaged = run([FedAvg(), OwnRows()], "64-true")
    torch.testing.assert_close(adam.server.w, averaged.server.w, rtol=0, atol=1e-6)
