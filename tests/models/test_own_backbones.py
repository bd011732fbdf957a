"""The backbones that fedlit adds to timm: ResNet-20 in its CIFAR form, and a small network for 28x28."""

import pytest
import timm
import torch
from torch import nn
from toys import CLASSES

from fedlit.core.flat import Layout
from fedlit.models import ImageClassifier
from fedlit.models.networks import Block
from fedlit.objectives import BCE, AUCSaddle

BACKBONES = {"resnet20_cifar": (3, 32, 64), "small_cnn": (1, 28, 128)}
EVERY = pytest.mark.parametrize("backbone", BACKBONES)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_resnet20_is_that_of_the_paper():
    model = timm.create_model("resnet20_cifar", num_classes=10)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 20
    assert [m.out_channels for m in layers[:-1]] == [16] * 7 + [32] * 6 + [64] * 6
    assert {m.kernel_size for m in layers[:-1]} == {(3, 3)}
    assert [i for i, m in enumerate(layers[:-1]) if m.stride == (2, 2)] == [7, 13]
    assert parameters(model) == 269_722
    assert parameters(timm.create_model("resnet20_cifar", num_classes=0)) == 269_072


def test_small_cnn_is_as_stated():
    assert parameters(timm.create_model("small_cnn", num_classes=0)) == 92_896


@pytest.mark.parametrize(("before", "channels", "size"), [(4, 4, 6), (4, 8, 6), (4, 8, 7)])
def test_a_shortcut_takes_every_second_pixel_and_adds_zeros(before, channels, size):
    block = Block(before, channels, channels // before).eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, before, size, size)
    out = block(x)
    stride = channels // before
    torch.testing.assert_close(out[:, :before], x[:, :, ::stride, ::stride].clamp(min=0))
    assert not out[:, before:].any()


def test_a_block_by_hand():
    block = Block(4, 8, 2).eval()
    x = torch.randn(2, 4, 6, 6)
    inner = torch.relu(block.bn1(nn.functional.conv2d(x, block.conv1.weight, stride=2, padding=1)))
    outer = block.bn2(nn.functional.conv2d(inner, block.conv2.weight, padding=1))
    shortcut = torch.cat([x[:, :, ::2, ::2], torch.zeros(2, 4, 3, 3)], dim=1)
    torch.testing.assert_close(block(x), torch.relu(outer + shortcut))


@EVERY
@pytest.mark.parametrize("size", [28, 32])
def test_features_are_the_mean_over_the_image(backbone, size):
    in_chans, _, features = BACKBONES[backbone]
    body = timm.create_model(backbone, num_classes=0, in_chans=in_chans).eval()
    images = torch.randn(2, in_chans, size, size)
    maps = body.forward_features(images)
    assert maps.shape == (2, features, size // 4, size // 4)
    torch.testing.assert_close(body(images), maps.mean((2, 3)))
    assert body.num_features == features


@pytest.mark.parametrize(
    ("backbone", "objective"), [("resnet20_cifar", BCE()), ("small_cnn", AUCSaddle(prior=0.3))], ids=BACKBONES
)
def test_second_derivatives_exist_and_are_right(backbone, objective):
    """A Hessian-vector product by double backward against differences of gradients, in training mode."""
    torch.manual_seed(0)
    in_chans = BACKBONES[backbone][0]
    model = ImageClassifier(("positive",), backbone, in_chans, objective=objective).double()
    batch = torch.randn(6, in_chans, 12, 12).double(), (torch.arange(6) % 3 == 0)[:, None].double()
    weights = [p for n, p in model.named_parameters() if not n.startswith("objective")]
    directions = [torch.randn_like(p) * p.detach().std(correction=0).clamp(min=0.1) for p in weights]

    def gradient(create_graph: bool = False) -> list[torch.Tensor]:
        return torch.autograd.grad(model.training_step(batch, 0), weights, create_graph=create_graph)

    def shifted(step: float) -> list[torch.Tensor]:
        with torch.no_grad():
            for p, d in zip(weights, directions, strict=True):
                p.add_(d, alpha=step)
        return gradient()

    along = sum((g * d).sum() for g, d in zip(gradient(create_graph=True), directions, strict=True))
    product = torch.cat([h.flatten() for h in torch.autograd.grad(along, weights)])
    eps = 1e-8  # so small that no ReLU changes its side
    above, below = shifted(eps), shifted(-2 * eps)
    difference = torch.cat([((a - b) / (2 * eps)).flatten() for a, b in zip(above, below, strict=True)])
    assert (product - difference).norm() < 1e-5 * product.norm()


@EVERY
def test_the_slices_of_its_layout(backbone):
    model = ImageClassifier(("positive",), backbone, BACKBONES[backbone][0], objective=AUCSaddle())
    slices = Layout.of(model).slices
    assert slices["dual"].stop - slices["dual"].start == 1
    assert slices["head"].stop - slices["head"].start == BACKBONES[backbone][2] + 1 + 2
    norms = sum(2 * m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert slices["norm"].stop - slices["norm"].start == norms > 0


@EVERY
def test_group_norm_and_weights_of_a_file(backbone, tmp_path):
    in_chans = BACKBONES[backbone][0]
    grouped = ImageClassifier(CLASSES, backbone, in_chans, norm="group")
    assert not any(isinstance(m, nn.BatchNorm2d) for m in grouped.modules())
    published = timm.create_model(backbone, num_classes=10)
    torch.save(published.state_dict(), tmp_path / "published.pth")
    body = ImageClassifier(CLASSES, backbone, 1, weights=tmp_path / "published.pth").body
    stem = published.conv1.weight.sum(1, keepdim=True)
    torch.testing.assert_close(body.conv1.weight, stem)
    for name, value in body.state_dict().items():
        if name != "conv1.weight":
            torch.testing.assert_close(value, published.state_dict()[name], rtol=0, atol=0)
