"""Whether a federation's steps are replayed from a CUDA graph, and whether its forward pass is compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from lightning.pytorch import LightningModule

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.flat import FlatModel
from fedlit.core.graphs import RECORDERS, hindrance, notice, refusal
from fedlit.core.optimizer import FlatOptimizer
from fedlit.core.parts import Parts

OWN = "it does not say recordable = True, which is for steps that do the same on every batch of one shape"


@dataclass(frozen=True)
class Recording:
    """What was chosen.

    Attributes:
        wanted: Whether steps are recorded.
        must: Whether it is an error where one cannot be.
        notice: What the person at the keyboard should know of it, or "".
    """

    wanted: bool = False
    must: bool = False
    notice: str = ""


def chosen(
    wanted: bool | Literal["auto"],
    device: torch.device,
    model: FlatModel,
    optimizer: FlatOptimizer,
    aggregators: Sequence[Aggregator],
) -> Recording:
    """Choose whether steps are recorded.

    Args:
        wanted: What ``federation.cuda_graph`` says. ``auto`` records on a CUDA GPU what declares that it can be recorded.
        device: Where models are trained.
        model: What is trained.
        optimizer: Its optimizer.
        aggregators: The federation's algorithms.

    Raises:
        ConfigError: It was asked for, and cannot be done.
    """
    if device.type not in RECORDERS:
        if wanted is True:
            raise ConfigError(
                f"federation.cuda_graph: true is for models that train on a CUDA GPU, and these train on {device}; set "
                "fabric.accelerator: cuda, or use auto"
            )
        return Recording()
    if not wanted:
        return Recording()
    name, reason = type(model.module).__name__, hindrance(model, optimizer, aggregators)
    if wanted is True:
        if reason:
            raise ConfigError(refusal(name, reason))
        return Recording(True, must=True)
    reason = reason or ("" if Parts.of(model.module).recordable else OWN)
    return Recording(not reason, notice=notice(name, reason) if reason else "")


def at_a_site(wanted: bool | Literal["auto"], device: torch.device, module: LightningModule) -> bool:
    """Tell whether a site with this device records steps, as far as they can be; one without a GPU does not."""
    return device.type in RECORDERS and (wanted is True or (wanted == "auto" and Parts.of(module).recordable))


def check_compiler(wanted: bool | None, device: torch.device) -> None:
    """Refuse to compile for a CPU without a compiler.

    Raises:
        ConfigError: There is none.
    """
    if not wanted or device.type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ConfigError(
            "federation.compile: PyTorch finds no C++ compiler, which it needs on a CPU; install g++ or clang, or leave "
            "compile out"
        ) from error
