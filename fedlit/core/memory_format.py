"""The order in which convolutions find pixels in memory; names, shapes and the flat vector's order stay as they are."""

from collections.abc import Callable
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn


def with_channels_last(batch: Any) -> Any:
    """Give a batch whose images [B, C, H, W] lie in memory as [B, H, W, C]; anything else in it stays as it is."""
    return apply_to_collection(batch, Tensor, _image)


def unchanged(value: Any) -> Any:
    """Leave a batch, or a weight, as it is."""
    return value


def weight_formats(module: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    """Tell, for the parameters that can say ``channels_last`` in the flat vector's order, how they are then seen.

    They are the weights of 2-D convolutions of 1x1, and of those with one input channel a group: [O, I, H, W] and
    [O, H, W, I] are the same order there, and only the strides say which is meant. Without that, a convolution of 1x1
    brings its images into the other order and back at every step.
    """
    return {
        f"{prefix}.weight".lstrip("."): _as_channels_last
        for prefix, layer in module.named_modules()
        if type(layer) is nn.Conv2d and _either(layer.weight)
    }


def convolutions(module: nn.Module) -> list[nn.Module]:
    """List the 2-D convolutions, to which alone the format makes a difference."""
    return [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]


def converted_weights(module: nn.Module) -> tuple[int, int]:
    """Count the weights of 2-D convolutions that are converted to the other order at every step, and all of them."""
    weights = [layer.weight for layer in convolutions(module)]
    return sum(w.numel() for w in weights if not _either(w)), sum(w.numel() for w in weights)


def _either(weight: Tensor) -> bool:
    return weight.shape[2:] == (1, 1) or weight.shape[1] == 1


def _as_channels_last(weight: Tensor) -> Tensor:
    outputs, inputs, height, width = weight.shape
    return weight.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _image(tensor: Tensor) -> Tensor:
    if tensor.ndim != 4:
        return tensor
    if tensor.shape[1] == 1 and tensor.is_contiguous():
        return _as_channels_last(tensor)  # ``to`` would keep strides that are good for either order
    return tensor.to(memory_format=torch.channels_last)
