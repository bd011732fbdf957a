"""FedLC and FedRS: formulas, absent classes, and that every client trains with its own counts."""

import math

import pytest
import torch
import torch.nn.functional as F
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from toys import ToyData, with_objective

from fedlit.core.objective import Objective
from fedlit.objectives import BCE, FedLC, FedRS

LOGITS = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
OF = [0, 1, 1, 2, 1]
ONE = F.one_hot(torch.tensor(OF), 4).double()
COUNTED = torch.cat([ONE, ONE, ONE[:1]])  # 3, 6, 2 and 0 images of the classes


def settled(objective: Objective, labels: torch.Tensor) -> Objective:
    objective.build(labels.shape[1])
    objective.settle_client(labels)
    return objective


def test_fedlc_is_the_softmax_of_calibrated_logits():
    """Written by hand, over the classes that the client has; class 3 has no image."""
    logits, n, tau, expected = LOGITS.clone().requires_grad_(), [3, 6, 2], 0.7, 0.0
    for row, y in zip(logits, OF, strict=True):
        total = sum(torch.exp(row[c] - tau * n[c] ** (-1 / 4)) for c in range(3))
        expected = expected - torch.log(torch.exp(row[y] - tau * n[y] ** (-1 / 4)) / total) / 5
    loss = settled(FedLC(tau, "softmax"), COUNTED)(logits, ONE)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient[:, 3].any()


def test_fedrs_is_the_softmax_with_restricted_logits():
    expected = 0.0
    for row, y in zip(LOGITS, OF, strict=True):
        scaled = [row[0], row[1], row[2], 0.3 * row[3]]
        expected -= math.log(math.exp(scaled[y]) / sum(math.exp(s) for s in scaled)) / 5
    assert float(settled(FedRS(0.3, "softmax"), COUNTED)(LOGITS, ONE)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("objective", [FedLC(0.7), FedRS(0.3)], ids=lambda o: type(o).__name__)
def test_the_multi_label_form_is_the_papers_form_of_each_class_with_yes_and_no(objective):
    """A class with logit f is a softmax over (f, 0); absent is one of the two where all images agree."""
    labels = torch.tensor([[1, 0, 1], [0, 0, 1], [0, 0, 1], [1, 0, torch.nan]], dtype=torch.float64)
    logits = LOGITS[:4, :3].clone()
    softmax = type(objective)(*[v for k, v in vars(objective).items() if k in ("tau", "alpha")], "softmax")
    expected = 0.0
    for c in range(3):
        known = ~labels[:, c].isnan()
        pair = torch.stack([labels[known, c], 1 - labels[known, c]], 1)
        scores = torch.stack([logits[known, c], torch.zeros(int(known.sum()), dtype=torch.float64)], 1)
        expected += settled(softmax, pair)(scores, pair) * known.sum() / 11
    torch.testing.assert_close(settled(objective, labels)(logits, labels), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["sigmoid", "softmax"])
@pytest.mark.parametrize("kind", [FedLC, FedRS])
def test_without_counts_and_in_validation_it_is_plain_cross_entropy(kind, form):
    plain = BCE()(LOGITS, ONE) if form == "sigmoid" else F.cross_entropy(LOGITS, torch.tensor(OF))
    objective = kind(form=form)
    objective.build(4)
    torch.testing.assert_close(objective(LOGITS, ONE), plain)
    objective.settle_client(COUNTED)
    assert not torch.isclose(objective(LOGITS, ONE), plain)
    torch.testing.assert_close(objective.eval()(LOGITS, ONE), plain)
    expected = LOGITS.softmax(1) if form == "softmax" else LOGITS.sigmoid()
    torch.testing.assert_close(objective.probabilities(LOGITS), expected)


def calibrated(logits: torch.Tensor, labels: torch.Tensor, positives: list[int], negatives: list[int]) -> torch.Tensor:
    """The loss of FedLC with tau = 1, label by label."""
    total, known = torch.zeros((), dtype=torch.float64), 0
    for row, of in zip(logits, labels, strict=True):
        for c in range(3):
            if not of[c].isnan():
                known += 1
                f = row[c] - positives[c] ** -0.25 + negatives[c] ** -0.25
                total = total + torch.log1p(torch.exp(-f if of[c] == 1 else f))
    return total / known


def test_three_rounds_equal_a_loop_with_each_clients_own_counts():
    torch.manual_seed(3)
    done, hand = trained_by_fedlit([], module=with_objective(FedLC(), drop=0.0, lr=0.2))
    for cohort in done.cohorts:
        ends = {}
        for k in cohort:
            labels = done.session.data.clients[k].train.tensors[1]
            counts = [[max(1, int((labels[:, c] == y).sum())) for c in range(3)] for y in (1, 0)]
            start = {n: hand.x[n] for n in hand.x}
            ends[k] = hand.local(k, start, loss=lambda m, b, counts=counts: calibrated(m(b[0]), b[1], *counts))
        hand.average(cohort, ends)
    assert_equal(done, hand)


def test_counts_stay_with_their_client_and_survive_its_rounds():
    done = simulate(with_objective(FedLC()), ToyData(3), federated([], rounds=2, window=1), "32-true")
    for name, state in done.states.items():
        labels = done.session.data.clients[name].train.tensors[1]
        found = state.buffers["objective.counts"]
        assert torch.equal(found, torch.stack([(labels == 1).sum(0), (labels == 0).sum(0)]))
    assert done.session.layout.stats_size == 8  # of BatchNorm alone
