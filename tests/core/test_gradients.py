"""Clipped sums of per-example gradients: the loop is the truth, and vmap gives the same."""

from functools import partial

import pytest
import torch
from private_toys import Linear, PlainNet, local
from torch import nn
from toys import CLASSES, ToyNet

from fedlit.aggregators import FedBNPlus
from fedlit.core.gradients import LEAST, by_vmap, clipped_sum, one_by_one
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle


def examples(number: int, pixels: int = 8, channels: int = 1, seed: int = 0) -> list[list[torch.Tensor]]:
    """Batches of one image, some of whose labels are NaN; all of the last one."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(number, 1, channels, pixels, pixels, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 2, (number, 1, len(CLASSES)), generator=draw).double()
    labels[torch.rand(labels.shape, generator=draw) < 0.2] = torch.nan
    labels[-1] = torch.nan
    return [[image, label] for image, label in zip(images, labels, strict=True)]


def densenet() -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(CLASSES, "densenet121", objective=AUCSaddle(prior=0.3, start="zeros"), in_chans=1)


def plain() -> PlainNet:
    torch.manual_seed(0)
    net = PlainNet()
    net.objective = AUCSaddle(prior=0.3, start="zeros")
    net.objective.build(len(CLASSES))
    return net


CASES = {"toy": (plain, [], 8), "DenseNet121 with frozen BatchNorm": (densenet, [FedBNPlus()], 32)}


@pytest.mark.parametrize(
    ("case", "clip"),
    [("toy", 0.05), ("toy", float("inf")), *(pytest.param(c, 0.05, marks=pytest.mark.slow) for c in [*CASES][1:])],
)
def test_vmap_is_the_loop(case, clip):
    make, aggregators, pixels = CASES[case]
    model = local(make(), aggregators)
    loss = partial(model.loss, step=0)
    some = examples(3, pixels)
    expected, found = (way(model.flat, loss, some, clip) for way in (one_by_one, by_vmap))
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_each_gradient_is_clipped_and_then_added():
    model = local(Linear(4))
    some = [torch.tensor([[3.0, 4.0, 0, 0]]).double(), torch.tensor([[0, 0, 0.5, 0]]).double()]
    for way in (one_by_one, by_vmap):
        found = way(model.flat, partial(model.loss, step=0), some, 1.0)
        assert found.tolist() == pytest.approx([0.6, 0.8, 0.5, 0.0], abs=1e-15)


@pytest.mark.parametrize("objective", ["AUCSaddle", "BCE"])
def test_an_image_without_any_label_has_a_gradient_of_0(objective):
    model = local(plain() if objective == "AUCSaddle" else PlainNet())
    unlabelled = examples(3)[-1:]
    for way in (one_by_one, by_vmap):
        assert way(model.flat, partial(model.loss, step=0), unlabelled, 1.0).count_nonzero() == 0


@pytest.mark.parametrize("size", [1e-5, 1e-15, 1e-20, 1e-22, 1e-25, 1e-40])
def test_squares_below_the_least_float_do_not_undo_the_least_clip(size):
    model = local(Linear(1000), precision="32-true")
    for way in (one_by_one, by_vmap):
        found = way(model.flat, partial(model.loss, step=0), [torch.full((1, 1000), size)], LEAST)
        assert found.double().norm() <= LEAST * (1 + 1e-6)


def test_a_gradient_that_is_not_finite_counts_as_0():
    model = local(Linear(2))
    broken, sound = torch.full((1, 2), torch.nan).double(), torch.ones(1, 2).double()
    for way in (one_by_one, by_vmap):
        found = way(model.flat, partial(model.loss, step=0), [broken, sound], 9.0)
        assert found.tolist() == [1.0, 1.0]


class ByItem(PlainNet):
    """Control flow that follows the data."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return 2 * loss if loss.item() > 0 else loss


@pytest.mark.parametrize("kind", [ByItem, ToyNet], ids=["item", "dropout"])
def test_what_vmap_cannot_compute_takes_the_loop_and_says_so(kind):
    net = kind()
    net.body[1] = nn.GroupNorm(2, 4)
    model = local(net)
    with pytest.warns(UserWarning, match="one by one"):
        clipped_sum(model.flat, partial(model.loss, step=0), examples(2), 1.0)
    assert clipped_sum(model.flat, partial(model.loss, step=0), [], 1.0).count_nonzero() == 0


class Differs(Linear):
    """A loss that is another one in vmap."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (
            2 if torch._C._functorch.is_functorch_wrapped_tensor(self.w) else 1
        )


def test_a_model_that_differs_in_vmap_takes_the_loop():
    model = local(Differs(2))
    with pytest.warns(UserWarning, match="other gradients"):
        found = clipped_sum(model.flat, partial(model.loss, step=0), [torch.ones(1, 2).double()], 9.0)
    assert found.tolist() == [1.0, 1.0]
