"""Which classes exclude each other, and scores that rank images as the softmax does."""

import pytest
import torch
import torch.nn.functional as F
from exclusive import CLASSES, OWN, Cross, Summed, examples, logits_of
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from fedlit.core.examples import columns
from fedlit.core.fabric import make_fabric
from fedlit.core.objective import Objective
from fedlit.core.scoring import are_probabilities, link_of, link_of_loss, log_odds, probabilities, softmax
from fedlit.models import LogisticRegression
from fedlit.objectives import BCE, AUCSaddle, FedLC, FedRS, RatioLoss, SoftmaxFocalLoss

LOGITS = 8 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


class TestLogOdds:
    def test_the_sigmoid_turns_them_back_into_the_softmax(self):
        torch.testing.assert_close(log_odds(softmax(LOGITS)).sigmoid(), softmax(LOGITS))

    def test_they_rank_images_as_the_softmax_does_also_where_it_rounds_to_one(self):
        logits = torch.linspace(0, 60, 200)[:, None] * torch.tensor([[1.0, 0.0, -0.5]])
        exact = logits.double().softmax(1)
        assert len(logits.softmax(1)[:, 0].unique()) < 100  # float32 has no digits left for most of them
        assert (log_odds(softmax(logits))[:, 0].diff() > 0).all()
        torch.testing.assert_close(log_odds(softmax(logits)).double().sigmoid(), exact, rtol=1e-5, atol=1e-30)

    def test_shares_of_zero_are_finite(self):
        assert log_odds(torch.tensor([[1.0, 0.0, 0.0]])).isfinite().all()


class Smooth(nn.Module):
    """A loss as projects write it, from the logarithm of the softmax."""

    def forward(self, logits, labels):
        return -(labels * logits.log_softmax(dim=-1)).sum(1).mean()


class Sharp(Objective):
    """A loss that says itself how logits become probabilities."""

    def forward(self, logits, labels):
        return F.cross_entropy(3 * logits, labels)

    def probabilities(self, logits):
        return (3 * logits).softmax(1)


class Margin(nn.Module):
    """Neither a cross-entropy over the classes nor one of each class."""

    def forward(self, logits, labels):
        return F.relu(1 - logits * (2 * labels - 1)).mean()


OVER_CLASSES = {
    "focal": SoftmaxFocalLoss, "FedLC": lambda: FedLC(form="softmax"), "FedRS": lambda: FedRS(form="softmax"),
    "torch": nn.CrossEntropyLoss, "weighted": lambda: nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1),
    "own": Smooth, "own probabilities": Sharp,
}  # fmt: skip
OF_EACH = {
    "BCE": BCE, "AUCSaddle": AUCSaddle, "ratio": lambda: RatioLoss(0.5, 2.0), "FedLC": FedLC, "FedRS": FedRS,
    "torch": nn.BCEWithLogitsLoss, "soft margin": nn.MultiLabelSoftMarginLoss, "own": Margin,
}  # fmt: skip


def made(loss) -> nn.Module:
    loss = loss()
    if isinstance(loss, Objective):
        loss.build(3)
    return loss


@pytest.mark.parametrize("name", OVER_CLASSES)
def test_losses_over_the_classes(name):
    link = link_of_loss(made(OVER_CLASSES[name]), 3)
    expected = (3 * LOGITS).softmax(1) if name == "own probabilities" else LOGITS.softmax(1)
    torch.testing.assert_close(link(LOGITS), expected)
    torch.testing.assert_close(probabilities(made(OVER_CLASSES[name]), LOGITS[:, :3]), link(LOGITS[:, :3]))


@pytest.mark.parametrize("name", OF_EACH)
def test_losses_of_each_class(name):
    assert link_of_loss(made(OF_EACH[name]), 3) is None
    assert torch.equal(probabilities(made(OF_EACH[name]), LOGITS[:, :3]), LOGITS[:, :3].sigmoid())


def test_one_class_excludes_none():
    assert link_of_loss(nn.CrossEntropyLoss(), 1) is None


def test_predictions_of_a_classifier_are_the_softmax_of_its_loss():
    model = LogisticRegression(4, CLASSES, objective=nn.CrossEntropyLoss())
    rows = torch.randn(5, 4)
    torch.testing.assert_close(model.predict_step((rows, None), 0), model(rows).softmax(1))


def link(module: LightningModule, form: str = "indices", **options):
    return link_of(module, make_fabric("cpu", **options), examples(0, form=form))


@pytest.mark.parametrize("form", ["indices", "rows"])
@pytest.mark.parametrize("name", OWN)
def test_modules_with_a_loss_of_their_own(name, form):
    module, over = OWN[name]
    assert (link(module(form=form), form) is not None) == over


def test_labels_that_are_indices_decide_if_a_loss_does_not():
    assert link(Summed(form="indices"), "indices") is softmax
    assert link(Summed(form="rows"), "rows") is None
    labels = torch.tensor([[2], [0]], dtype=torch.uint8)  # as in the files of MedMNIST
    assert link_of(Summed(), make_fabric("cpu"), TensorDataset(torch.zeros(2, 4), labels)) is softmax
    assert torch.equal(columns(labels, 3), torch.tensor([[0.0, 0, 1], [1, 0, 0]]))


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_in_other_precisions(precision):
    assert link(Cross(form="rows"), "rows", precision=precision) is softmax


def test_trying_a_step_changes_no_module():
    module, fabric = Cross(), make_fabric("cpu")
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert link_of(module, fabric, examples(0)) is softmax
    assert module.accuracy.update_count == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not fabric.logged
    assert not fabric.metrics


def test_a_step_that_fails_leaves_the_decision_to_the_labels():
    class Failing(Cross):
        def training_step(self, batch):
            raise RuntimeError("as in its first round")

    assert link(Failing()) is softmax
    assert link(Failing(), "rows") is None


def test_rows_of_probabilities_are_recognised_in_every_precision():
    shares = softmax(LOGITS)
    assert are_probabilities(shares)
    assert are_probabilities(shares.bfloat16().float())
    assert not are_probabilities(LOGITS)
    assert not are_probabilities(shares.log())
    assert not are_probabilities(LOGITS.sigmoid())
    assert not are_probabilities(logits_of(examples(0)))
