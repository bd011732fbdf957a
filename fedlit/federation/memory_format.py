"""Whether a federation's model computes on images that lie in memory as [B, H, W, C]."""

from typing import Literal

import torch
from torch import nn

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.memory_format import convolutions, turned
from fedlit.core.parts import Parts


def chosen(
    wanted: Literal["contiguous", "channels_last"] | None, fabric: FederationFabric, module: nn.Module
) -> Literal["contiguous", "channels_last", ""]:
    """Choose the memory format of a federation; the same on every machine and at every start.

    By default it is ``channels_last``, in single precision or bf16, for a module that says that it computes on either format
    (:attr:`fedlit.core.parts.Parts.any_memory_format`): always on a CUDA GPU, and on a CPU if half of its convolutions'
    weights or more need not be turned into the other order at every step (DenseNet, ResNet-50, MobileNet; ResNet-18 gains
    nothing).

    Args:
        wanted: What the settings say; None for the default.
        fabric: Device and precision.
        module: What is trained.

    Returns:
        The format; "" for a model to which it makes no difference.

    Raises:
        ConfigError: ``channels_last`` was asked for, and the model has no such convolution.
    """
    if not convolutions(module):
        if wanted != "channels_last":
            return ""
        raise ConfigError(
            f"federation.memory_format: channels_last is for 2-D convolutions, and {type(module).__name__} has none; leave it out"
        )
    if wanted is not None:
        return wanted
    turning, weights = turned(module)
    pays = fabric.device.type == "cuda" or 2 * turning <= weights
    pays = pays and _fast(fabric, module) and Parts.of(module).any_memory_format
    return "channels_last" if pays else "contiguous"


def _fast(fabric: FederationFabric, module: nn.Module) -> bool:
    """Whether convolutions are oneDNN's or cuDNN's, in single precision or less."""
    double = any(parameter.dtype == torch.float64 for parameter in module.parameters())
    return fabric.device.type in ("cpu", "cuda") and not double and fabric.strategy.precision.precision != "64-true"
