"""LocalSGDM and LocalSGDAM against explicit loops, with the handling of momenta at communications, and errors."""

import copy

import pytest
import torch
from saddle_toys import Scorer, Sites
from simulation import Simulation, federated, simulate
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedlit.aggregators import FedBN, FedProx, LocalSGDAM, LocalSGDM, Scaffold
from fedlit.objectives import BCE, AUCSaddle
from fedlit.testing import check_aggregator

LR = 0.2


def run(aggregators, module, data, rounds=3, window=2, **options) -> Simulation:
    return simulate(module, data, federated(aggregators, rounds, window, **options))


def cross_entropy() -> Scorer:
    torch.manual_seed(3)
    return Scorer(objective=BCE(), lr=LR)


def saddle(body: nn.Module | None = None, **objective) -> Scorer:
    """A saddle problem that starts at the module's own weights."""
    torch.manual_seed(3)
    return Scorer(body, lr=LR, objective=AUCSaddle(prior=0.4, start="zeros", **objective))


class ByHand:
    """Full-batch gradients of the clients, as functions of all parameters of a module in one vector."""

    def __init__(self, module: Scorer, data: Sites) -> None:
        data.setup()
        self.module = copy.deepcopy(module).double()
        self.start = parameters_to_vector(self.module.parameters()).detach()
        self.sets = [tuple(t.double() for t in client.train.tensors) for client in data.clients.values()]

    def gradient(self, k: int, x: Tensor) -> Tensor:
        vector_to_parameters(x, self.module.parameters())
        parts = torch.autograd.grad(self.module.training_step(self.sets[k], 0), list(self.module.parameters()))
        return torch.cat([part.reshape(-1) for part in parts])


def mean(vectors: list[Tensor]) -> Tensor:
    return sum(vectors) / len(vectors)


def test_one_client_of_localsgdm_is_torchs_sgd_with_momentum():
    data = Sites(1)
    plain = cross_entropy()
    plain.momentum = 0.9
    torchs = run([], plain, data, rounds=3, window=4, optimizer_state="keep")
    for window in (1, 4, 12):
        done = run([LocalSGDM(0.9)], cross_entropy(), data, rounds=12 // window, window=window)
        torch.testing.assert_close(done.server.w, torchs.server.w, rtol=0, atol=1e-12)


def test_corrections_act_on_the_step_and_not_on_the_momentum():
    """At the second step of a round FedProx pulls back by lr mu |x - x_r|, and u is the gradient at that point."""
    data, module = Sites(1, batch_size=12), saddle()
    hand = ByHand(module, data)
    pull = torch.full_like(hand.start, 0.5)
    pull[-1] = 0  # dual variables are not pulled
    sign = torch.ones_like(hand.start)
    sign[-1] = -1
    u = hand.gradient(0, hand.start)
    x = hand.start - LR * sign * u
    u = 0.9 * u + 0.1 * hand.gradient(0, x)
    x = x - LR * (sign * u + pull * (x - hand.start))
    u = 0.9 * u + 0.1 * hand.gradient(0, x)
    done = run([FedProx(0.5), LocalSGDAM()], module, data, rounds=1)
    torch.testing.assert_close(done.server.w, x, rtol=0, atol=1e-12)
    torch.testing.assert_close(done.server.aggregators[1]["u"], u, rtol=0, atol=1e-12)


def test_scaffold_corrects_the_steps_of_clients_that_differ():
    done = run([Scaffold(), LocalSGDAM()], saddle(), Sites(3), rounds=4)
    states = [s.aggregators[0]["c"] for s in done.states.values()]
    torch.testing.assert_close(mean(states), done.server.aggregators[0]["c"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregator", [LocalSGDM(), LocalSGDAM()])
def test_what_a_client_keeps_to_itself_has_its_own_momentum(aggregator):
    """A single client trains in the same way whether it keeps its normalisation layers or not."""
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module = saddle(body)
    alone, keeping = (run(a, module, Sites(1)) for a in ([aggregator], [FedBN(), aggregator]))
    layout = keeping.session.layout
    own = keeping.states["site-0"]
    torch.testing.assert_close(own.w, alone.server.w[layout.slices["norm"]], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        own.aggregators[1]["u"], alone.server.aggregators[0]["u"][layout.slices["norm"]], rtol=0, atol=1e-12
    )
    several = run([FedBN(), aggregator], module, Sites(3))
    norms = [s.aggregators[1]["u"] for s in several.states.values()]
    assert not torch.equal(norms[0], norms[1])
    assert not several.server.aggregators[1]["u"][layout.slices["norm"]].any(), "nothing of it was sent"


def test_late_clients_go_on_along_the_servers_momentum():
    """An explicit loop: shared parts have the server's u, a client's own parts its first estimate."""
    data, module = Sites(3, batch_size=12), saddle(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    done = run([FedBN(), LocalSGDAM(0.3, 0.6)], module, data, rounds=6, participation=0.3)
    assert len(set(done.cohorts)) > 1
    hand = ByHand(module, data)
    named = [(name, parameter.numel()) for name, parameter in module.named_parameters()]
    keeps = torch.cat([torch.full((size,), name.startswith("body.1")) for name, size in named])
    ascent, beta = torch.ones_like(hand.start), torch.full_like(hand.start, 0.3)
    ascent[-1], beta[-1] = -1, 0.6
    x, u, own = hand.start.clone(), None, {}
    for (name,) in done.cohorts:
        k = int(name.removeprefix("site-"))
        kept_x, kept_u = own.get(k, (hand.start, None))
        mine = torch.where(keeps, kept_x, x)
        first = hand.gradient(k, mine) if kept_u is None else kept_u
        step = first if u is None else torch.where(keeps, first, u)
        for _ in range(2):
            mine = mine - LR * ascent * step
            step = (1 - beta) * step + beta * hand.gradient(k, mine)
        own[k], x, u = (mine, step), torch.where(keeps, hand.start, mine), torch.where(keeps, 0.0, step)
    found = torch.cat([done.tensor(name).flatten() for name, _ in named])
    torch.testing.assert_close(found, x, rtol=0, atol=1e-12)


def test_localsgdam_keeps_to_the_rules():
    check_aggregator(LocalSGDAM(), workers=1, module=saddle(), data=Sites(3))
