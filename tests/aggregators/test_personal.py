"""FedPer, FedRep and LocalOnly against loops written by hand, and which part steps when."""

import pytest
import torch
from canon_oracle import assert_equal, state, trained_by_fedlit
from simulation import federated, simulate
from torch import nn
from toys import Problems, Quadratic, ToyData, ToyNet

from fedlit.aggregators import FedBN, FedPer, FedProx, FedRep, LocalOnly

HEAD = ("head.weight", "head.bias")


@pytest.mark.parametrize(
    ("aggregator", "momentum"),
    [(FedPer(), 0.0), (FedRep(2), 0.0), (FedRep(1), 0.5)],
    ids=["FedPer", "FedRep", "momentum"],
)
def test_three_rounds_equal_the_algorithm_by_hand(aggregator, momentum):
    """FedRep freezes a part of the model, whose momentum then has no gradient."""
    uniform = aggregator.weights == "uniform"
    done, hand = trained_by_fedlit([aggregator], momentum=momentum, others=[])
    first = getattr(aggregator, "head", 0)
    heads = {}
    assert (len(set(hand.pi.values())) == 1) == uniform
    for cohort in done.cohorts:
        ends = {}
        for k in cohort:
            module, buffers = hand.at(hand.x | heads.get(k, {})), hand.zeros()
            for step in range(3):
                loss = module.training_step(hand.batch(k), 0)
                gradients = torch.autograd.grad(loss, list(module.parameters()))
                with torch.no_grad():
                    for (name, y), g in zip(module.named_parameters(), gradients, strict=True):
                        steps = not first or (name in HEAD) == (step < first)
                        buffers[name] = momentum * buffers[name] + steps * g
                        y -= steps * 0.2 * buffers[name]
            ends[k] = state(module)
            heads[k] = {name: ends[k][name] for name in HEAD}
        total = sum(hand.pi[k] for k in cohort)
        for name in hand.x.keys() - set(HEAD):
            hand.x[name] = sum(hand.pi[k] * ends[k][name] for k in cohort) / total
    assert_equal(done, hand)
    for k, kept in done.states.items():
        model = state(done.session.model(done.server, k, kept))
        for name in HEAD:
            torch.testing.assert_close(model[name], heads[k][name], rtol=0, atol=1e-9)


class Product(Quadratic):
    """``(a h - b)^2 / 2``: the body a and the head h are single numbers."""

    def __init__(self) -> None:
        super().__init__()
        del self.x
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.body.weight.fill_(1.0)
            self.head.weight.fill_(1.0)

    def training_step(self, batch, batch_idx):
        return ((self.body.weight * self.head.weight - batch[1]) ** 2 / 2).mean()


def test_two_clients_and_two_steps_computed_by_hand():
    # a = h = 1, rate 0.1. b = 2: the head's step is h = 1 + 0.1 = 1.1, then a = 1 + 0.1 * 1.1 * (2 - 1.1) = 1.099
    # b = 4: h = 1 + 0.1 * 3 = 1.3, then a = 1 + 0.1 * 1.3 * (4 - 1.3) = 1.351; the body is (1.099 + 1.351) / 2 = 1.225
    data = Problems(one=(1.0, 2.0), two=(1.0, 4.0))
    done = simulate(Product(), data, federated([FedRep(1)], rounds=1))
    heads = [state.w for state in done.states.values()]
    found = torch.cat([done.tensor("body.weight").flatten(), *heads])
    torch.testing.assert_close(found, torch.tensor([1.225, 1.1, 1.3], dtype=torch.float64), rtol=0, atol=1e-12)


def test_heads_fit_each_client_where_one_model_cannot():
    """The published property of both: the product of one body and own heads fits all clients."""
    data = Problems(one=(1.0, 2.0), two=(1.0, 4.0))
    for aggregator in (FedRep(2), FedPer()):
        done = simulate(Product(), data, federated([aggregator], rounds=12, window=4))
        body = float(done.tensor("body.weight"))
        heads = [float(state.w) for state in done.states.values()]
        assert [body * head for head in heads] == pytest.approx([2.0, 4.0], abs=1e-3)


class Watched(FedRep):
    """Notes which parts moved at each step."""

    moved: list = []

    def on_after_optimizer_step(self, ctx, batches):
        super().on_after_optimizer_step(ctx, batches)
        before = ctx.scratch.get("before", ctx.start)
        head = ctx.layout.slices["head"]
        self.moved.append((bool((ctx.w != before)[: head.start].any()), bool((ctx.w != before)[head].any())))
        ctx.scratch["before"] = ctx.w.clone()


class Decaying(ToyNet):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def test_one_part_steps_at_a_time_also_with_momentum_weight_decay_and_epochs():
    Watched.moved.clear()
    simulate(Decaying(), ToyData(1), federated([Watched(2), FedProx(0.1), FedBN()], 1, 3, "epochs"), "32-true")
    assert Watched.moved == [(False, True)] * 6 + [(True, False)] * 3


def test_local_training_alone_is_plain_sgd_of_each_client():
    torch.manual_seed(0)
    module, data = ToyNet(drop=0.0).double(), ToyData(3)
    done = simulate(module, data, federated([LocalOnly()], rounds=2, window=3))
    assert torch.equal(done.server.w, done.start.w)
    assert done.session.personal == list(done.session.clients)
    for name, kept in done.states.items():
        alone = ToyNet(drop=0.0).double()
        alone.load_state_dict(module.state_dict())
        optimizer, stream = torch.optim.SGD(alone.parameters(), lr=0.1), done.session.engine._pool.worker.stream(name)
        for step in range(6):
            optimizer.zero_grad()
            images, labels = stream[step]
            alone.training_step((images.double(), labels.double()), 0).backward()
            optimizer.step()
        found = state(done.session.model(done.server, name, kept))
        for key, value in state(alone).items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-12)
