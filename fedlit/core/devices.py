"""Copies of tensors to a device without waiting for it, and constants that stay there."""

from functools import cache

import torch
from torch import Tensor


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
