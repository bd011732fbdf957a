"""Binary cross-entropy over the known labels."""

import pytest
import torch
import torch.nn.functional as F
from toys import ToyNet

from fedlit.aggregators import Scaffold
from fedlit.experiment.naming import Names
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle

NAN = float("nan")


def test_equals_torch_where_everything_is_labelled():
    logits, labels = torch.randn(5, 3), torch.randint(0, 2, (5, 3)).float()
    torch.testing.assert_close(BCE()(logits, labels), F.binary_cross_entropy_with_logits(logits, labels))


class Own(BCE):
    """Another loss, built on BCE."""


@pytest.mark.parametrize(
    ("objective", "name"),
    [(BCE(), "Scaffold"), (Own(), "Scaffold-Own"), (AUCSaddle(), "Scaffold-AUCSaddle"), (None, "Scaffold")],
)
def test_bce_adds_nothing_to_the_name_of_a_method(objective, name):
    module = ToyNet()
    module.objective = objective
    assert Names.of(Federation([Scaffold()]), module).method == name


def test_missing_labels_are_negatives_where_asked():
    logits = torch.tensor([[0.3, -1.2], [2.0, 0.1]], dtype=torch.float64)
    labels = torch.tensor([[1.0, NAN], [NAN, 0.0]], dtype=torch.float64)
    p = 1 / (1 + torch.exp(-logits))
    expected = -(p[0, 0].log() + (1 - p[0, 1]).log() + (1 - p[1, 0]).log() + (1 - p[1, 1]).log()) / 4
    torch.testing.assert_close(BCE("negative")(logits, labels), expected)
