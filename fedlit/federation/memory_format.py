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
from fedlit.core.memory_format import convolutions
from fedlit.core.module import copy_of, overrides, step_of


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
) -> MemoryFormat:
    """Choose the memory format of a federation.

    ``auto`` is ``channels_last`` on a CPU in single precision or bf16, where the model has a 2-D convolution, the batch
    has images, and a step on two of them succeeds.

    Args:
        wanted: What the settings say.
        fabric: Device and precision.
        module: What is trained; stays as it is.
        aggregators: The algorithms, which may change the model.
        data: A training set, of which two examples are tried.

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
    if wanted == "contiguous" or (wanted == "auto" and not _pays(fabric, module)):
        return MemoryFormat("contiguous")
    reason, images = _tried(fabric, module, aggregators, data)
    if not reason:
        return MemoryFormat("channels_last" if images or wanted == "channels_last" else "contiguous")
    if wanted == "channels_last":
        raise ConfigError(
            f"federation.memory_format: {name} cannot compute on channels_last images ({reason}); write reshape in place of "
            "view, or use auto"
        )
    return MemoryFormat(
        "contiguous",
        f"{name} computes on contiguous images, which is slower: a step on channels_last ones failed ({reason})",
    )


def _pays(fabric: FederationFabric, module: LightningModule) -> bool:
    """Whether steps are faster: with oneDNN's convolutions on a CPU, which are none of double precision."""
    double = any(parameter.dtype == torch.float64 for parameter in module.parameters())
    return fabric.device.type == "cpu" and not double and fabric.strategy.precision.precision != "64-true"


def _tried(
    fabric: FederationFabric, module: LightningModule, aggregators: Sequence[Aggregator], data: Dataset
) -> tuple[str, bool]:
    """Why a step and an evaluation on channels_last images fail, or ""; and whether a convolution meets such images."""
    met: list[bool] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        met.append(any(part.ndim == 4 for part in inputs if torch.is_tensor(part)))

    with torch.random.fork_rng(devices=[]):
        try:
            local = LocalModel(fabric, copy_of(module), aggregators, LocalTraining(channels_last=True))
            for layer in convolutions(local.module):
                layer.register_forward_pre_hook(look)
            batch = fetch(data, torch.arange(2))
            local.gradient(batch, 0)
            if overrides(local.module, "validation_step"):
                local.module.eval()
                step = step_of(local.module, "validation_step")
                with torch.no_grad():
                    local.apply(lambda moved: step(moved, 0), batch)
        except (Exception, SystemExit) as error:
            return str(error).partition("\n")[0] or type(error).__name__, bool(met)
        finally:
            fabric.logged.clear()
    return "", any(met)
