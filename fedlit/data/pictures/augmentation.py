"""Augmentation of training images: transforms of a batch that draw new parameters for each image."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlit.core.system.devices import to_device


class XrayAugmentation(nn.Module):
    """Small rotation, shift and scale, then slight brightness and contrast, for chest X-rays.

    There is no horizontal flip, because the heart is on the left. Parameters are uniform and drawn for each image from
    torch's default generator. All images are then resampled in one pass, which is much faster than torchvision's
    transforms in a loop.

    Args:
        degrees: Largest rotation to either side, in degrees.
        shift: Largest shift, as a fraction of height and width.
        scale: Largest relative change of size, such as 0.08 for 8%.
        brightness: Largest relative change of brightness, such as 0.1 for 10%.
        contrast: Largest relative change of contrast, such as 0.1 for 10%.
    """

    on_device = True
    """Computes on the device of the images, with parameters drawn on the CPU."""

    def __init__(
        self,
        degrees: float = 7.0,
        shift: float = 0.05,
        scale: float = 0.08,
        brightness: float = 0.1,
        contrast: float = 0.1,
    ):
        super().__init__()
        # The sampling grid spans -1 to 1, so a shift by a fraction of the width is twice that.
        self.limits = (math.radians(degrees), 2 * shift, 2 * shift, scale, brightness, contrast)

    def forward(self, images: Tensor) -> Tensor:
        """Transform float images [B, C, H, W] in [0, 1]; shape and range stay, and uncovered corners are black."""
        height, width = images.shape[-2:]
        draws = (2 * torch.rand(len(images), 6) - 1) * torch.tensor(self.limits)
        angle, right, down, scale, brightness, contrast = draws.T
        cos, sin = torch.cos(angle) / (1 + scale), torch.sin(angle) / (1 + scale)
        parameters = torch.stack([cos, sin, right, down, brightness, contrast])
        cos, sin, right, down, brightness, contrast = to_device(parameters, images.device)
        # The grid is relative to height and width: without their ratio a rotation shears oblong images.
        along_x = torch.stack([cos, sin * width / height], dim=1)[:, :, None] * _centres(width, images.device)
        along_y = torch.stack([-sin * height / width, cos], dim=1)[:, :, None] * _centres(height, images.device)
        shift = torch.stack([right, down], dim=1)[:, :, None]
        # Broadcasting makes the grid; affine_grid takes fifty times as long, which is more than the sampling.
        grid = along_x[:, :, None, :] + (along_y + shift)[:, :, :, None]
        images = F.grid_sample(images, grid.permute(0, 2, 3, 1), align_corners=False)
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        bright, contrasted = ((1 + factor).view(-1, 1, 1, 1) for factor in (brightness, contrast))
        return (((images - mean) * contrasted + mean) * bright).clamp(0, 1)


class FlipCropAugmentation(nn.Module):
    """Horizontal flip, and a crop of the image's own size out of the padded image, for photographs.

    The flip has probability 1/2 and the crop is uniform; both are drawn for each image from torch's default generator.

    Args:
        padding: Width of the black border before the crop, as a fraction of height and width. With 1/8 it is 4 of 32
            pixels.
    """

    on_device = True
    """Computes on the device of the images, with parameters drawn on the CPU."""

    def __init__(self, padding: float = 0.125):
        super().__init__()
        self.padding = padding

    def forward(self, images: Tensor) -> Tensor:
        """Transform float images [B, C, H, W]; the shape stays."""
        height, width = images.shape[-2:]
        down, right = round(self.padding * height), round(self.padding * width)
        draws, device = to_device(torch.rand(len(images), 3, 1), images.device), images.device
        rows = (draws[:, 0] * (2 * down + 1)).long() + torch.arange(height, device=device)
        across = torch.arange(width, device=device)
        columns = torch.where(draws[:, 2] < 0.5, across, across.flip(0))
        columns = (draws[:, 1] * (2 * right + 1)).long() + columns
        padded = F.pad(images, (right, right, down, down)).permute(0, 2, 3, 1)
        image = torch.arange(len(images), device=device)[:, None, None]
        return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _centres(size: int, device: torch.device) -> Tensor:
    """Return the centres of ``size`` pixels between -1 and 1, as ``grid_sample`` places them."""
    return (2 * torch.arange(size, device=device) + 1) / size - 1


class PerImage(nn.Module):
    """A transform applied to each image, because torchvision's transforms draw one set of parameters per batch.

    Args:
        transform: A transform of one float image [C, H, W] in [0, 1].
    """

    def __init__(self, transform: nn.Module):
        super().__init__()
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        """Transform float images [B, C, H, W] in [0, 1], one after another."""
        return torch.stack([self.transform(image) for image in images])
