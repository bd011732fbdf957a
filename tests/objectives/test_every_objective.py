"""Every objective: unknown labels, batches without labels, saturated logits, refusals; the plain losses' formulas."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from refusals import refused, table
from toys import ToyNet

from fedlit.aggregators import Scaffold
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.experiment.naming import Names
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle, FedLC, FedRS, RatioLoss, SoftmaxFocalLoss

INDICES = torch.tensor([0, 1, 2, 3, 1, 0])
ONE_CLASS = F.one_hot(INDICES, 4).double()
ALPHA = [5.5, 2.0, 0.5, 100.0]
"""Weights of the classes in the focal loss."""
LOGITS = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
OBJECTIVES = {
    "BCE": BCE, "AUCSaddle": lambda: AUCSaddle(prior=0.3), "AUCSaddle raw": lambda: AUCSaddle(0.6, "raw", prior=0.3),
    "RatioLoss": lambda: RatioLoss(prior=0.1), "RatioLoss both": lambda: RatioLoss(prior=0.1, weigh="both"),
    "SoftmaxFocalLoss": SoftmaxFocalLoss, "FedLC": FedLC, "FedLC softmax": lambda: FedLC(form="softmax"),
    "FedRS": FedRS, "FedRS softmax": lambda: FedRS(form="softmax"),
}  # fmt: skip


def built(name: str, classes: int = 4) -> torch.nn.Module:
    objective = OBJECTIVES[name]()
    if hasattr(objective, "build"):
        objective.build(classes)
    return objective.double()


def loss_and_gradient(objective, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.clone().requires_grad_()
    loss = objective(logits, labels)
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_unknown_labels_add_neither_loss_nor_gradient(name):
    labels = ONE_CLASS.clone()
    labels[:, 3] = torch.nan
    known = ONE_CLASS[:, 3] == 0
    loss, gradient = loss_and_gradient(built(name), LOGITS, labels)
    assert not gradient[:, 3].any()
    assert gradient[known][:, :3].all()
    rows = known if "softmax" in name.lower() else slice(None)  # without its class, an image is unknown to a softmax
    torch.testing.assert_close(loss, built(name, 3)(LOGITS[rows][:, :3], labels[rows][:, :3]).detach())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_without_labels_is_zero_with_a_gradient(name):
    loss, gradient = loss_and_gradient(built(name), LOGITS, torch.full_like(LOGITS, torch.nan))
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_logits_and_batches_without_positives_stay_finite(name, dtype):
    objective = built(name).to(dtype)
    if name.startswith("Fed"):
        objective.settle_client(ONE_CLASS[:3])  # the last class is absent
    for labels in (ONE_CLASS, torch.zeros_like(ONE_CLASS)):
        loss, gradient = loss_and_gradient(objective, (1e4 * LOGITS).to(dtype), labels.to(dtype))
        assert loss.isfinite()
        assert gradient.isfinite().all()


MISTAKES = [
    ("AUCSaddle.margin of 0", lambda: AUCSaddle(0.0), ConfigError, "found 0.0"),
    ("AUCSaddle.margin of NaN", lambda: AUCSaddle(torch.nan), ConfigError, "AUCSaddle.margin", "nan"),
    ("AUCSaddle.dual_scale of -1", lambda: AUCSaddle(dual_scale=-1.0), ConfigError, "dual_scale", "found -1.0"),
    ("AUCSaddle.prior of 0", lambda: AUCSaddle(prior=0.0), ConfigError, "found 0"),
    ("another margin of the paper's form", lambda: AUCSaddle(0.5, form="paper"), ConfigError, "found 0.5"),
    ("a clamp of the paper's form", lambda: AUCSaddle(form="paper", clamp=True), ConfigError, "clamp"),
    ("FedLC.tau of -1", lambda: FedLC(-1.0), ConfigError, "FedLC.tau", "-1"),
    ("FedRS.alpha of 1.5", lambda: FedRS(1.5), ConfigError, "FedRS.alpha", "1.5"),
    ("RatioLoss.a0 of -1", lambda: RatioLoss(-1.0), ConfigError, "a0", "found -1.0"),
    ("RatioLoss.b0 of NaN", lambda: RatioLoss(b0=torch.nan), ConfigError, "b0", "found nan"),
    ("RatioLoss of zeros", lambda: RatioLoss(0.0, 0.0), ConfigError, "a0 or b0"),
    ("RatioLoss.prior of 1", lambda: RatioLoss(prior=1.0), ConfigError, "found 1"),
    ("SoftmaxFocalLoss.gamma of -1", lambda: SoftmaxFocalLoss(-1), ConfigError, "found -1"),
    ("a weight of 0", lambda: SoftmaxFocalLoss(alpha=[1, 0]), ConfigError, "SoftmaxFocalLoss.alpha"),
    ("weights of 4 for 2", lambda: SoftmaxFocalLoss(alpha=[1, 1, 1, 1]).build(2), ConfigError, "of 2", "found 4"),
    *((f"several classes of {name}", partial(lambda name: built(name)(LOGITS, torch.ones_like(LOGITS)), name),
        TrainingError, name.split()[0], "one class per image") for name in ("FedRS softmax", "SoftmaxFocalLoss")),
]  # fmt: skip


@table(MISTAKES)
def test_it_is_refused(provoke, kind, names):
    with refused(kind, *names):
        provoke()


def test_bce_is_torchs_where_everything_is_labelled():
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
    labels = torch.tensor([[1.0, torch.nan], [torch.nan, 0.0]], dtype=torch.float64)
    p = 1 / (1 + torch.exp(-logits))
    expected = -(p[0, 0].log() + (1 - p[0, 1]).log() + (1 - p[1, 0]).log() + (1 - p[1, 1]).log()) / 4
    torch.testing.assert_close(BCE("negative")(logits, labels), expected)


def test_without_gamma_and_weights_the_focal_loss_is_cross_entropy():
    torch.testing.assert_close(SoftmaxFocalLoss(0.0)(LOGITS, ONE_CLASS), F.cross_entropy(LOGITS, INDICES))


def test_value_and_gradient_of_the_focal_loss_are_those_of_the_formula():
    logits, expected = LOGITS.clone().requires_grad_(), 0.0
    for row, of in zip(logits, INDICES, strict=True):
        p = row[of].exp() / row.exp().sum()
        expected = expected - ALPHA[of] * (1 - p) ** 2 * p.log() / 6
    loss = SoftmaxFocalLoss(2.0, ALPHA)(logits, ONE_CLASS)
    torch.testing.assert_close(loss, expected)
    (own,), (theirs,) = torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits)
    torch.testing.assert_close(own, theirs)
