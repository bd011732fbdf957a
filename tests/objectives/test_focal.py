"""The focal loss over a softmax: formula, gradient, unknown labels."""

import torch
import torch.nn.functional as F

from fedlit.models import LogisticRegression
from fedlit.objectives import SoftmaxFocalLoss

LOGITS = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 1, 2, 3, 1, 0])
LABELS = F.one_hot(CLASSES, 4).double()
ALPHA = [5.5, 2.0, 0.5, 100.0]


def test_without_gamma_and_weights_it_is_cross_entropy():
    torch.testing.assert_close(SoftmaxFocalLoss(0.0)(LOGITS, LABELS), F.cross_entropy(LOGITS, CLASSES))


def test_value_and_gradient_are_those_of_the_formula():
    logits, expected = LOGITS.clone().requires_grad_(), 0.0
    for row, of in zip(logits, CLASSES, strict=True):
        p = row[of].exp() / row.exp().sum()
        expected = expected - ALPHA[of] * (1 - p) ** 2 * p.log() / 6
    loss = SoftmaxFocalLoss(2.0, ALPHA)(logits, LABELS)
    torch.testing.assert_close(loss, expected)
    (own,), (theirs,) = torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits)
    torch.testing.assert_close(own, theirs)


def test_predictions_are_the_softmax():
    model = LogisticRegression(3, ("a", "b", "c"), objective=SoftmaxFocalLoss())
    rows = torch.randn(5, 3)
    torch.testing.assert_close(model.predict_step((rows, None), 0), model(rows).softmax(1))
