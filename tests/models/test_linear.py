"""Logistic regression: one linear layer, whose initial weights may be those of other code."""

import torch

from fedlit.models import LogisticRegression


def test_logits_and_probabilities_are_those_of_the_layer():
    model, rows = LogisticRegression(3, ("a", "b")), torch.randn(5, 3)
    expected = rows @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(rows), expected)
    torch.testing.assert_close(model.predict_step((rows, torch.zeros(5, 2)), 0), expected.sigmoid())
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]


def test_a_start_gives_torchs_weights_and_leaves_the_generator_alone():
    torch.manual_seed(42)
    expected = torch.nn.Linear(13, 1)
    torch.manual_seed(7)
    before = torch.rand(1)
    torch.manual_seed(7)
    started = LogisticRegression(13, ("a",), start=42)
    assert torch.equal(started.head.weight, expected.weight)
    assert torch.equal(started.head.bias, expected.bias)
    assert torch.equal(torch.rand(1), before)
    torch.manual_seed(7)
    drawn = LogisticRegression(13, ("a",))
    assert not torch.equal(drawn.head.weight, expected.weight)
