"""Terms that an aggregator adds to the loss: FedProx as a term equals FedProx, also with computed gradients."""

import pytest
import torch
from saddle_toys import Scorer, Sites
from simulation import federated, simulate
from torch import nn

from fedlit.aggregators import Aggregator, FedProx, LocalSGDM
from fedlit.objectives import BCE
from fedlit.testing import check_aggregator


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


def run(aggregators):
    torch.manual_seed(0)
    return simulate(Scorer(objective=BCE()), Sites(3), federated(aggregators, window=3)).server.w


@pytest.mark.parametrize("others", [[], [LocalSGDM(0.9)]], ids=["alone", "beside who computes the gradient"])
def test_fedprox_as_a_term_of_the_loss_pulls_as_fedprox(others):
    if others:  # FedProx acts on the step there, and a term of the loss on the momentum too
        assert not torch.equal(run([Pull(), *others]), run(others))
        return
    torch.testing.assert_close(run([Pull()]), run([FedProx(0.5)]), rtol=0, atol=1e-9)


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


def test_it_keeps_to_the_rules_in_worker_processes_and_over_a_resume():
    check_aggregator(Pull(), workers=1)


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
    assert torch.isfinite(run([AcceptsOnlyLess()])).all()
