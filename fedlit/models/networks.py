"""Small networks, registered with timm: ``small_cnn`` for images of about 28x28, ``resnet20_cifar`` for 32x32."""

from itertools import pairwise

import torch.nn.functional as F
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three 3x3 convolutions with 32, 64 and 128 channels, and the mean over the image.

    BatchNorm and ReLU follow each convolution, and 2x2 max pooling the first two. Without a classifier the network has
    92,896 parameters for grey images. All operations have second derivatives.

    It is fedlit's choice for Fashion-MNIST. Zhang et al., "Federated Compositional Deep AUC Maximization", NeurIPS
    2023, arXiv:2304.10101, section 6.1, describes the network of its experiments in an appendix that was not available.

    Args:
        num_classes: Rows of a linear classifier; 0 for features [B, 128].
        in_chans: Channels of the images.
    """

    def __init__(self, num_classes: int = 10, in_chans: int = 1) -> None:
        super().__init__()
        self.num_classes, self.num_features = num_classes, 128
        self.conv1, self.bn1 = _convolution(in_chans, 32)
        self.conv2, self.bn2 = _convolution(32, 64)
        self.conv3, self.bn3 = _convolution(64, 128)
        self.pool, self.act = nn.MaxPool2d(2), nn.ReLU()
        self.fc = nn.Linear(128, num_classes) if num_classes else nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images [B, in_chans, H, W] to [B, 128, H/4, W/4]."""
        x = self.pool(self.act(self.bn1(self.conv1(images))))
        x = self.pool(self.act(self.bn2(self.conv2(x))))
        return self.act(self.bn3(self.conv3(x)))

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, in_chans, H, W] to features [B, 128] or logits."""
        return self.fc(self.forward_features(images).mean((2, 3)))


def _convolution(before: int, channels: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution = nn.Conv2d(before, channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution, nn.BatchNorm2d(channels)


class ResNet20(nn.Module):
    """ResNet-20 (He et al., CVPR 2016, arXiv:1512.03385, section 4.2).

    A 3x3 convolution, three stages of three basic blocks with 16, 32 and 64 channels, and the mean over the image.

    Shortcuts have no parameters (option A): at the start of a stage they keep every second pixel, and the new channels
    are zero. Stages two and three halve the image. Without a classifier the network has 269,072 parameters for RGB, and
    269,722 with one of ten classes. All operations have second derivatives.

    Args:
        num_classes: Rows of a linear classifier; 0 for features [B, 64].
        in_chans: Channels of the images.
    """

    def __init__(self, num_classes: int = 10, in_chans: int = 3) -> None:
        super().__init__()
        self.num_classes, self.num_features = num_classes, 64
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.stages = nn.Sequential(*(Block(before, after, after // before) for before, after in pairwise(widths)))
        self.fc = nn.Linear(64, num_classes) if num_classes else nn.Identity()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images [B, in_chans, H, W] to [B, 64, H/4, W/4]."""
        return self.stages(F.relu(self.bn1(self.conv1(images))))

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, in_chans, H, W] to features [B, 64] or logits."""
        return self.fc(self.forward_features(images).mean((2, 3)))


class Block(nn.Module):
    """Two 3x3 convolutions in parallel to a shortcut without parameters, from ``before`` to no fewer ``channels``."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.new_channels = stride, channels - before
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, before, H, W] to [B, channels, H/stride, W/stride]."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.new_channels:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(residual + x)


default_cfgs = generate_default_cfgs({
    "small_cnn": {"input_size": (1, 28, 28), "num_classes": 10, "first_conv": "conv1", "classifier": "fc"},
    "resnet20_cifar": {"input_size": (3, 32, 32), "num_classes": 10, "first_conv": "conv1", "classifier": "fc"},
})  # fmt: skip


@register_model
def small_cnn(pretrained: bool = False, **kwargs) -> SmallCNN:
    """Make a network of three convolutions for images of about 28x28, without pretrained weights; see `SmallCNN`."""
    return build_model_with_cfg(SmallCNN, "small_cnn", pretrained, **kwargs)


@register_model
def resnet20_cifar(pretrained: bool = False, **kwargs) -> ResNet20:
    """Make a ResNet-20 for images of 32x32, without pretrained weights; see `ResNet20`."""
    return build_model_with_cfg(ResNet20, "resnet20_cifar", pretrained, **kwargs)
