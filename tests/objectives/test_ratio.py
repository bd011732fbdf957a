"""The ratio loss: value and gradient by formula, unknown labels, and the federation's ratio of labels."""

import pytest
import torch
from saddle_toys import Scorer, Sites
from simulation import federated, simulate

from fedlit.aggregators import LocalSGDM
from fedlit.federation.evaluation import objective_metrics
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle, RatioLoss


def built(classes: int = 1, **options) -> RatioLoss:
    loss = RatioLoss(**options)
    loss.build(classes)
    return loss


def federation(weights: str) -> Federation:
    return federated([LocalSGDM()], rounds=2, weights=weights, measure_batches=1)


@pytest.mark.parametrize(("weigh", "negatives"), [("positives", (1, 1)), ("both", (0.5 + 0.2 * 4, 0.5 + 0.2 / 9))])
def test_value_and_gradient_are_the_formulas(weigh, negatives):
    loss = built(2, a0=0.5, b0=0.2, weigh=weigh).double()
    loss.p.copy_(torch.tensor([0.1, 0.8], dtype=torch.float64))
    logits = torch.tensor([[0.3, -1.0], [-2.0, 0.7]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([[0.5 + 0.2 * 9, negatives[0]], [negatives[1], 0.5 + 0.2 / 4]], dtype=torch.float64)
    s = logits.sigmoid()
    expected = -(weights * (labels * s.log() + (1 - labels) * (1 - s).log())).mean()
    value = loss(logits, labels)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-14)
    slope = torch.autograd.grad(value, logits)[0]
    torch.testing.assert_close(slope, (weights * (s - labels) / 4).detach(), rtol=0, atol=1e-14)


def test_with_equal_weights_it_is_bce_and_balanced_it_gives_positives_and_negatives_one_half_each():
    logits, labels = torch.zeros(10, 1), (torch.arange(10) < 2).float()[:, None]
    torch.testing.assert_close(built(b0=0.0, prior=0.2)(logits, labels), BCE()(logits, labels))
    logits.requires_grad_()
    slope = torch.autograd.grad(built(a0=0.0, b0=1.0, prior=0.2)(logits, labels), logits)[0][:, 0]
    torch.testing.assert_close(slope[:2].sum(), -slope[2:].sum())


def test_the_defaults_are_the_papers():
    torch.testing.assert_close(built(prior=0.1).weight, torch.tensor([1.9]))
    torch.testing.assert_close(built(prior=0.01).weight, torch.tensor([10.9]))


@pytest.mark.parametrize("kind", [RatioLoss, AUCSaddle])
def test_a_prior_keeps_its_digits_in_double_precision(kind):
    loss = kind(prior=0.1)
    loss.build(1)
    assert float(loss.p) != 0.1
    assert float(loss.double().p) == 0.1
    module = Scorer(objective=kind(prior=0.1), lr=0.1)
    assert float(simulate(module, Sites(2), federation("uniform"), "64-true").buffer("objective.p")) == 0.1


class Unequal(Sites):
    """The second client has a third of the first's examples."""

    def setup(self, stage=None):
        super().setup(stage)
        client = list(self.clients.values())[1]
        client.train.tensors = tuple(t[:4] for t in client.train.tensors)


@pytest.mark.parametrize(("weights", "p"), [("examples", (2 + 4) / 16), ("uniform", (2 / 12 + 4 / 4) / 2)])
def test_the_ratio_is_the_federations_and_not_a_clients(weights, p):
    torch.manual_seed(0)
    done = simulate(Scorer(objective=RatioLoss(), lr=0.1), Unequal(2, positives=(2, 5)), federation(weights))
    torch.testing.assert_close(done.buffer("objective.p"), torch.tensor([p], dtype=torch.float64))
    metrics = objective_metrics(done.session, done.server, 1)
    assert metrics["objective/p/Edema"] == pytest.approx(p)


def test_a_prior_that_is_known_is_not_measured():
    done = simulate(Scorer(objective=RatioLoss(prior=0.25), lr=0.1), Sites(2), federation("examples"))
    assert float(done.buffer("objective.p")) == 0.25


def test_a_class_without_positives_has_the_weight_a0():
    loss = built(2, a0=1.0)
    loss.settle({"labels": torch.tensor([1.0, 0.0]), "positives": torch.tensor([0.0, 0.0])})
    assert loss.weight.tolist() == [1.0, 1.0]
