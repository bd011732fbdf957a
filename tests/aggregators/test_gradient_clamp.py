"""Gradients whose elements are bounded, as in the code of FDAM's experiments: ``clamp(g, -1, 1) - c_k + c``."""

import torch
from simulation import federated, simulate
from toys import CLASSES, Problems, Quadratic, ToyData

from fedlit.aggregators import FedProx
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle


def test_each_element_is_bounded_before_the_correction_is_added():
    mu, lr, optimum, x = 0.5, 0.1, 10.0, 0.0
    for _ in range(4):
        x -= lr * (max(-1.0, min(1.0, x - optimum)) + mu * (x - 0.0))
    given = federated([FedProx(mu)], rounds=1, window=4, gradient_clamp=1.0)
    done = simulate(Quadratic(0.0, lr).double(), Problems(one=(1.0, optimum)), given)
    torch.testing.assert_close(done.server.w, torch.tensor([x], dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_network_is_bounded_and_what_the_objective_has_of_its_own_is_not():
    torch.manual_seed(0)
    module = ImageClassifier(
        CLASSES, "small_cnn", objective=AUCSaddle(start="zeros"), optimizer=lambda p: torch.optim.SGD(p, lr=1.0)
    )
    data, bound, ends = ToyData(clients=1, batch_size=1000), 1e-3, []
    for options in ({}, {"gradient_clamp": bound}):
        done = simulate(module.double(), data, federated([], rounds=1, window=1, **options))
        ends.append(done.parameters())
    first = {name: parameter.detach() for name, parameter in module.named_parameters()}
    for name, free in ends[0].items():
        if name.startswith("objective."):
            assert (free - first.get(name, 0)).abs().max() > 2 * bound, f"{name} would not be clamped"
            torch.testing.assert_close(ends[1][name], free, rtol=0, atol=0)
        else:
            expected = first[name] + (free - first[name]).clamp(-bound, bound)
            torch.testing.assert_close(ends[1][name], expected, rtol=1e-9, atol=1e-12)
    assert any((free - first[name]).abs().max() > 2 * bound for name, free in ends[0].items() if name in first)
