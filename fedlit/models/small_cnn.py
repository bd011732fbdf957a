"""A small convolutional network for images of about 28x28, registered with timm as ``small_cnn``."""

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


default_cfgs = generate_default_cfgs({
    "small_cnn": {"input_size": (1, 28, 28), "num_classes": 10, "first_conv": "conv1", "classifier": "fc"},
})  # fmt: skip


@register_model
def small_cnn(pretrained: bool = False, **kwargs) -> SmallCNN:
    """Make a network of three convolutions for images of about 28x28, without pretrained weights; see `SmallCNN`."""
    return build_model_with_cfg(SmallCNN, "small_cnn", pretrained, **kwargs)
