"""Whether a federation's model computes on images that lie in memory as [B, H, W, C], and why not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import fetch
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.memory_format import convolutions, turned
from fedlit.core.module import copy_of, overrides, step_of

MANY = 5
"""Measured: ResNet-18 at 112 pixels in batches of 32 has 3, and gains nothing; at 224 pixels in batches of 16 it has 7."""


@dataclass(frozen=True)
class MemoryFormat:
    """What was chosen.

    Attributes:
        name: ``contiguous`` or ``channels_last``; "" for a model to which it makes no difference.
        notice: What the person at the keyboard should know of it, or "".
    """

    name: str
    notice: str = ""

    @property
    def channels_last(self) -> bool:
        """Whether convolutions compute in ``channels_last``."""
        return self.name == "channels_last"


def chosen(
    wanted: Literal["auto", "contiguous", "channels_last"],
    fabric: FederationFabric,
    module: LightningModule,
    aggregators: Sequence[Aggregator],
    data: Dataset,
    batch_size: int,
) -> MemoryFormat:
    """Choose the memory format of a federation; the same on every machine and at every start.

    ``auto`` is ``channels_last`` in single precision or bf16, where a step on two images succeeds with it, on a GPU always
    and on a CPU where it pays: half of the convolutions' weights or more need not be turned into the other order (DenseNet, ResNet-50,
    MobileNet), or a batch has ``MANY`` times as many elements as are turned (small networks, large images).

    Args:
        wanted: What the settings say.
        fabric: Device and precision.
        module: What is trained; stays as it is.
        aggregators: The algorithms, which may change the model.
        data: A training set, of which two examples are tried.
        batch_size: Images of a batch.

    Raises:
        ConfigError: ``channels_last`` was asked for, and the model has no such convolution or cannot compute on it.
    """
    name = type(module).__name__
    if not convolutions(module):
        if wanted != "channels_last":
            return MemoryFormat("")
        raise ConfigError(
            f"federation.memory_format: channels_last is for 2-D convolutions, and {name} has none; use auto"
        )
    if wanted == "contiguous" or (wanted == "auto" and not _fast(fabric, module)):
        return MemoryFormat("contiguous")
    reason, elements = _tried(fabric, module, aggregators, data, channels_last=True)
    needs_contiguous = reason and not _tried(fabric, module, aggregators, data, channels_last=False)[0]
    if wanted == "channels_last":
        if not needs_contiguous:
            return MemoryFormat("channels_last")
        raise ConfigError(
            f"federation.memory_format: {name} cannot compute on channels_last images ({reason}); write reshape in place of "
            "view, or use auto"
        )
    if needs_contiguous:
        told = (
            f"{name} computes on contiguous images, which may be slower: a step on channels_last ones failed ({reason})"
        )
        return MemoryFormat("contiguous", told)
    if fabric.device.type == "cuda":
        return MemoryFormat("channels_last" if elements else "contiguous")
    turning, weights = turned(module)
    pays = elements and (2 * turning <= weights or elements * batch_size >= MANY * turning)
    return MemoryFormat("channels_last" if pays else "contiguous")


def _fast(fabric: FederationFabric, module: LightningModule) -> bool:
    """Whether convolutions are oneDNN's or cuDNN's, of which channels_last is faster in single precision or less."""
    double = any(parameter.dtype == torch.float64 for parameter in module.parameters())
    return fabric.device.type in ("cpu", "cuda") and not double and fabric.strategy.precision.precision != "64-true"


def _tried(
    fabric: FederationFabric,
    module: LightningModule,
    aggregators: Sequence[Aggregator],
    data: Dataset,
    channels_last: bool,
) -> tuple[str, int]:
    """Why a step or an evaluation on two images fails, or ""; and the elements that an image has in convolutions."""
    met: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        met.append(sum(part.numel() for part in (*inputs, output)) // 2)

    with torch.random.fork_rng(devices=[]):
        try:
            local = LocalModel(fabric, copy_of(module), aggregators, LocalTraining(channels_last=channels_last))
            hooks = [layer.register_forward_hook(count) for layer in convolutions(local.module)]
            batch = fetch(data, torch.arange(2))
            local.gradient(batch, 0)
            for hook in hooks:
                hook.remove()
            if overrides(local.module, "validation_step"):
                local.module.eval()
                step = step_of(local.module, "validation_step")
                with torch.no_grad():
                    local.apply(lambda moved: step(moved, 0), batch)
        except (Exception, SystemExit) as error:
            return str(error).partition("\n")[0] or type(error).__name__, 0
        finally:
            fabric.logged.clear()
    return "", sum(met)
