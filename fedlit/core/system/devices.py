"""Tensors on the device of this process: copies without waiting, constants, and the memory format of convolutions.

Names, shapes and the flat vector's order are the same in both memory formats.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; copies to a GPU come from page-locked memory, so nothing waits for them."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return float32 numbers as a tensor on a device, copied there once; read-only."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)


def with_channels_last(batch: Any) -> Any:
    """Return a batch whose images [B, C, H, W] lie in memory as [B, H, W, C]; other values are unchanged."""
    return apply_to_collection(batch, Tensor, _image)


def unchanged(value: Any) -> Any:
    """Return a batch, or a weight, unchanged."""
    return value


def weight_formats(module: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return views of the parameters that can be ``channels_last`` in the flat vector's order, by name.

    These are the weights of 1x1 convolutions, and of 2-D convolutions with one input channel per group: there [O, I, H,
    W] and [O, H, W, I] are the same order, and only the strides tell which is meant. Without this, a 1x1 convolution
    converts its images to the other order and back at every step.
    """
    return {
        f"{prefix}.weight".lstrip("."): _as_channels_last
        for prefix, layer in module.named_modules()
        if type(layer) is nn.Conv2d and either_order(layer.weight)
    }


def either_order(weight: Tensor) -> bool:
    """Return whether a weight is the same in both orders."""
    return weight.shape[2:] == (1, 1) or weight.shape[1] == 1


def _as_channels_last(weight: Tensor) -> Tensor:
    outputs, inputs, height, width = weight.shape
    return weight.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _image(tensor: Tensor) -> Tensor:
    if tensor.ndim != 4:
        return tensor
    if tensor.shape[1] == 1 and tensor.is_contiguous():
        return _as_channels_last(tensor)  # ``to`` would keep strides that fit both orders
    return tensor.to(memory_format=torch.channels_last)
