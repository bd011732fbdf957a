"""Changes to a backbone for federations: normalisation and stem."""

import copy

import pytest
import timm
import torch
from torch import nn
from toys import CLASSES

from fedlit.core.flat import Layout
from fedlit.models import ImageClassifier
from fedlit.models.backbones import group_normalised, small_stem


def backbone(name: str) -> nn.Module:
    """A backbone with different affine parameters per layer, so that a swap is detected; a short one of its kind."""
    torch.manual_seed(0)
    short = {"block_config": (2, 2, 2, 2)} if name == "densenet121" else {}
    body = timm.create_model(name, num_classes=0, in_chans=1, **short)
    with torch.no_grad():
        for layer in body.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.normal_(1.0, 0.2)
                layer.bias.normal_(0.0, 0.2)
    return body


@pytest.fixture(scope="module", params=["densenet121", "resnet10t"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def made(name: str) -> nn.Module:
    """The backbone, of which each test changes a copy."""
    return backbone(name)


class TestGroupNorm:
    def test_every_batchnorm_is_replaced_and_keeps_its_scale_and_shift(self, made):
        before = made
        old = {n: layer for n, layer in before.named_modules() if isinstance(layer, nn.BatchNorm2d)}
        body = group_normalised(copy.deepcopy(before))
        assert not [n for n, layer in body.named_modules() if isinstance(layer, nn.modules.batchnorm._NormBase)]
        groups = [layer for layer in body.modules() if isinstance(layer, nn.GroupNorm)]
        assert len(groups) == len(old) > 10
        for n, layer in old.items():
            group = body.get_submodule(n)[0]
            assert group.num_channels == layer.num_features
            assert 1 < group.num_groups <= 32
            assert group.eps == layer.eps
            torch.testing.assert_close([group.weight, group.bias], [layer.weight, layer.bias], rtol=0, atol=0)

    def test_nothing_else_changes(self, made):
        """With BatchNorm's arithmetic put where GroupNorm went, activations included, it is the old backbone."""

        class AsBefore(nn.GroupNorm):
            def forward(self, images):
                return nn.functional.batch_norm(images, None, None, self.weight, self.bias, training=True, eps=self.eps)

        before = copy.deepcopy(made).train()
        body = group_normalised(copy.deepcopy(before))
        for layer in body.modules():
            if isinstance(layer, nn.GroupNorm):
                layer.__class__ = AsBefore
        images = torch.randn(4, 1, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(body(images), before(images), rtol=1e-4, atol=1e-4)


def test_a_federation_has_no_statistics_of_group_norm():
    model = ImageClassifier(CLASSES, backbone="small_cnn", norm="group")
    layout = Layout.of(model)
    assert layout.stats_size == 0
    affine = sum(p.numel() for m in model.modules() if isinstance(m, nn.GroupNorm) for p in m.parameters())
    assert layout.slices["norm"].stop - layout.slices["norm"].start == affine > 0


def first_block(body: nn.Module, images: torch.Tensor) -> tuple[int, ...]:
    """Shape of the first block's input."""
    block = next(layer for name, layer in body.named_modules() if name in ("features.denseblock1", "layer1"))
    seen = []

    def stop(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        seen.append(inputs[0].shape)
        raise StopIteration

    handle = block.register_forward_pre_hook(stop)
    with torch.no_grad(), pytest.raises(StopIteration):
        body.eval()(images)
    handle.remove()
    return tuple(seen[0])


class TestSmallStem:
    def test_the_first_block_sees_the_image_at_its_own_size(self, name, made):
        images = torch.randn(2, 1, 32, 32)
        assert first_block(copy.deepcopy(made), images) == (2, 64, 8, 8)
        assert first_block(small_stem(copy.deepcopy(made), name), images) == (2, 64, 32, 32)

    def test_it_is_one_3x3_convolution(self, name, made):
        """All other weights stay."""
        body = small_stem(copy.deepcopy(made), name)
        old, new = made.state_dict(), body.state_dict()
        changed = [n for n in old if n not in new or not torch.equal(old[n], new[n])]
        assert changed == [f"{made.pretrained_cfg['first_conv']}.weight"]
        assert new[changed[0]].shape[1:] == (1, 3, 3)
        assert new.keys() == old.keys()
