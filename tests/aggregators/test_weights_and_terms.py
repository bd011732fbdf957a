"""Client weights of an aggregator's own, which all means follow, and terms that it adds to the loss."""

import math

import pytest
import torch
from engine_rounds import opened, run
from refusals import refused
from saddle_toys import Scorer, Sites
from simulation import federated, simulate
from torch import nn
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator, FedProx, LocalSGDM
from fedlit.core.errors import ConfigError
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE
from fedlit.schedules import ConstantSchedule
from fedlit.testing import check_aggregator


class FedDisco(Aggregator):
    """FedDisco (Ye et al., ICML 2023, arXiv:2305.19229): ``p_k ~ n_k / n - a d_k + b``, with the discrepancy d_k.

    d_k is the distance of a client's label distribution from the uniform one. The weights are kept above 0.
    """

    def __init__(self, a: float = 0.5, b: float = 0.1) -> None:
        self.a, self.b = a, b

    def client_weight(self, client, counts):
        shares = counts[0] / counts[0].sum()
        return max(client.weight - self.a * (shares - 1 / len(shares)).norm() + self.b, 1e-9)


def means(aggregators: list[Aggregator]) -> tuple[dict, dict, dict]:
    """Return the clients, the means of one round, and each client's own vectors."""
    torch.manual_seed(0)
    federation = Federation(aggregators, schedule=ConstantSchedule(2, "steps"))
    with opened(federation, ToyNet(), ToyData(3)) as (session, server):
        rnd, total, _ = run(session, server)
        down, each = session.broadcast(server, rnd), {}
        for name in session.clients:
            payload, _ = session.engine.run([name], down, rnd)
            each[name] = {key: vector / payload.weight for key, vector in payload.vectors.items()}
        counts = session.data.counts()
        return session.clients, {k: v / total.weight for k, v in total.vectors.items()}, each, counts


def test_all_means_follow_the_weights_of_feddisco():
    clients, mean, each, counts = means([FedDisco()])
    positives = counts[counts["split"] == "train"].pivot(index="client", columns="class", values="positives")
    shares = positives.div(positives.sum(1), axis=0).to_numpy()
    sizes = torch.tensor([client.examples for client in clients.values()]).double()
    expected = (sizes / sizes.sum()).numpy() - 0.5 * ((shares - 1 / 3) ** 2).sum(1) ** 0.5 + 0.1
    weights = {name: client.weight for name, client in clients.items()}
    assert list(weights.values()) == pytest.approx(expected / expected.sum(), rel=1e-12)
    assert list(weights.values()) != pytest.approx(sizes / sizes.sum(), rel=1e-2)
    for key in ("w", "stats"):  # BatchNorm's statistics too
        torch.testing.assert_close(mean[key], sum(weights[name] * own[key] for name, own in each.items()))


@pytest.mark.parametrize("weight", [0, math.inf, None])
def test_only_positive_numbers_are_weights(weight):
    class Fixed(Aggregator):
        def client_weight(self, client, counts):
            return weight

    with refused(ConfigError, "Fixed.client_weight", "'site-0'", "above 0", str(weight)):
        means([Fixed()])


class Pull(Aggregator):
    """FedProx as a term of the loss."""

    def extra_loss(self, ctx, batch):
        w = torch.cat([p.reshape(-1) for p in ctx.model.parameters])
        return 0.25 * ((w - ctx.start) ** 2).sum()


class Distilled(Aggregator):
    """Stays near the logits of the model at which the round began."""

    def extra_loss(self, ctx, batch):
        with torch.no_grad(), ctx.model.at(ctx.start):
            before = ctx.model.module(batch[0])
        return (ctx.model.module(batch[0]) - before).square().mean()


def trained(aggregators):
    torch.manual_seed(0)
    return simulate(Scorer(objective=BCE()), Sites(3), federated(aggregators, window=3)).server.w


@pytest.mark.parametrize("others", [[], [LocalSGDM(0.9)]], ids=["alone", "beside who computes the gradient"])
def test_fedprox_as_a_term_of_the_loss_pulls_as_fedprox(others):
    if others:  # FedProx acts on the step there, and a term of the loss on the momentum too
        assert not torch.equal(trained([Pull(), *others]), trained(others))
        return
    torch.testing.assert_close(trained([Pull()]), trained([FedProx(0.5)]), rtol=0, atol=1e-9)


def test_a_model_may_be_asked_at_the_start_of_the_round():
    data = Sites(1, batch_size=12)
    data.setup()
    vectors, labels = (part.double() for part in data.clients["site-0"].train[:])
    torch.manual_seed(0)
    module = Scorer(objective=BCE())
    done = simulate(module, data, federated([Distilled()], rounds=1, window=4))
    net = nn.Linear(4, 1).double()
    net.load_state_dict({k: v.double() for k, v in module.head.state_dict().items()})
    before = net(vectors).detach()
    optimizer = torch.optim.SGD(net.parameters(), lr=module.lr)
    for _ in range(4):
        optimizer.zero_grad()
        logits = net(vectors)
        (BCE()(logits, labels) + (logits - before).square().mean()).backward()
        optimizer.step()
    found = torch.cat([done.tensor(f"head.{name}").flatten() for name in ("weight", "bias")])
    by_hand = torch.cat([net.weight.detach().flatten(), net.bias.detach()])
    torch.testing.assert_close(found, by_hand, rtol=0, atol=1e-9)


def test_it_keeps_to_the_rules_over_a_resume():
    check_aggregator(Pull(), workers=1, data=ToyData(3, labelled=2))


class AcceptsOnlyLess(Aggregator):
    """Goes back to the start of the round if the loss of the last batch has not fallen since."""

    def on_after_optimizer_step(self, ctx, batches):
        with torch.no_grad():
            now = ctx.loss(batches[0], 0)
            with ctx.model.at(ctx.start):
                before = ctx.loss(batches[0], 0)
        assert not now.requires_grad
        if ctx.num_steps == ctx.window and now > before:
            ctx.w.copy_(ctx.start)


def test_the_loss_is_a_value_where_no_gradient_is_wanted():
    assert torch.isfinite(trained([AcceptsOnlyLess()])).all()
