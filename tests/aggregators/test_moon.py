"""MOON against its loss written by hand, its first round, and the state of layers around its extra passes."""

import math

import torch
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from torch.utils.data import TensorDataset
from toys import Quadratic, ToyData, ToyNet

from fedlit.aggregators import MOON, FedAvg
from fedlit.data.in_memory import GivenClients
from fedlit.testing import OwnRows


def test_three_rounds_equal_the_loss_by_hand():
    mu, temperature = 2.0, 0.4
    done, hand = trained_by_fedlit([MOON(mu, temperature)], rounds=4)
    last = {}
    for cohort in done.cohorts:
        start, ends = dict(hand.x), {}
        for k in cohort:
            fixed = [hand.at(weights).eval() for weights in (start, last[k])] if k in last else []

            def loss(module, batch, fixed=fixed):
                features = module.body(batch[0])
                total = module.objective(module.head(features), batch[1])
                terms = []
                for image, z in enumerate(features) if fixed else ():
                    with torch.no_grad():
                        others = [model.body(batch[0][image : image + 1])[0] for model in fixed]
                    near, far = ((z @ o) / (z.norm() * o.norm()) / temperature for o in others)
                    terms.append(-torch.log(torch.exp(near) / (torch.exp(near) + torch.exp(far))))
                return total + mu * sum(terms) / len(terms) if terms else total

            ends[k] = last[k] = hand.local(k, start, loss=loss)
        hand.average(cohort, ends)
    assert any(set(one) & set(other) for one, other in zip(done.cohorts, done.cohorts[1:], strict=False))
    assert_equal(done, hand)


class Line(Quadratic):
    """Two numbers are the features of an image of two pixels, and ``head`` adds them."""

    def __init__(self) -> None:
        super().__init__(lr=0.1)
        del self.x
        self.body = torch.nn.Linear(2, 2, bias=False)
        self.head = torch.nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.body.weight.copy_(torch.eye(2))
            self.head.weight.fill_(1.0)

    def forward(self, images):
        return self.head(self.body(images))

    def training_step(self, batch, batch_idx):
        return self(batch[0]).mean()


def points() -> GivenClients:
    """Two clients with two equal images each: (1, 0) and (0, 2)."""
    images = {"one": [1.0, 0.0], "two": [0.0, 2.0]}
    return GivenClients({n: TensorDataset(torch.tensor([image] * 2), torch.zeros(2)) for n, image in images.items()})


def test_two_clients_and_two_rounds_computed_by_hand():
    """Rounds of one step: features by the weights now equal those of the round's start, so their similarity is 1."""
    done = simulate(Line(), points(), federated([MOON(3.0, 0.5)], rounds=2, window=1))
    body, head, last = torch.eye(2).double(), torch.ones(2).double(), {}
    images = {"one": torch.tensor([1.0, 0.0]).double(), "two": torch.tensor([0.0, 2.0]).double()}
    for _ in range(2):
        ends = {}
        for name, image in images.items():
            z, g_body = body @ image, torch.outer(head, image)
            if name in last:
                p = last[name] @ image
                sim = (z @ p) / (z.norm() * p.norm())
                # d l_con / d sim(z, p) = s / T with s = sigmoid((sim - 1) / T); sim(z, z_glob) is stationary at z
                s = 1 / (1 + math.exp((1 - float(sim)) / 0.5))
                d_sim = p / (z.norm() * p.norm()) - sim * z / (z @ z)
                g_body = g_body + 3.0 * s / 0.5 * torch.outer(d_sim, image)
            ends[name] = body - 0.1 * g_body, head - 0.1 * z
        last = {name: end[0] for name, end in ends.items()}
        body, head = (sum(end[i] for end in ends.values()) / 2 for i in (0, 1))
    torch.testing.assert_close(done.tensor("body.weight"), body, rtol=0, atol=1e-12)
    torch.testing.assert_close(done.tensor("head.weight")[0], head, rtol=0, atol=1e-12)


def run(aggregators, rounds):
    torch.manual_seed(0)
    return simulate(ToyNet(), ToyData(3, labelled=2), federated(aggregators, rounds, 3), "32-true")


def test_the_first_round_and_mu_zero_are_fedavg_and_later_rounds_are_not():
    """The extra passes change neither statistics nor random numbers of dropout."""
    for rounds, mu, equal in ((1, 5.0, True), (3, 0.0, True), (2, 5.0, False)):
        ours, plain = run([MOON(mu), OwnRows()], rounds), run([FedAvg(), OwnRows()], rounds)
        assert torch.equal(ours.server.w, plain.server.w) == equal
        assert torch.equal(ours.server.stats, plain.server.stats) == equal


def test_layers_are_left_as_they_were():
    done = run([MOON()], 2)
    module = done.session.engine._pool.worker.local.module
    assert not module.head._forward_pre_hooks
    assert all(part.training for part in module.modules())
    kept = next(iter(done.states.values())).aggregators[0]
    assert kept["w"].shape == done.server.w.shape
    assert kept["trained"] == 1
    assert kept["stats"].abs().sum() > 0
