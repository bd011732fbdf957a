"""Use of the device: the memory format of convolutions, and the placement of images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from rich.filesize import decimal
from torch import nn
from torch.utils.data import Dataset

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.messages import ClientData
from fedlit.core.parts import Parts
from fedlit.core.system.devices import either_order
from fedlit.data.pictures.images import LabelledImages
from fedlit.data.pictures.store import ResidentStore


def resolve_memory_format(
    wanted: Literal["contiguous", "channels_last"] | None, fabric: FederationFabric, module: nn.Module
) -> Literal["contiguous", "channels_last", ""]:
    """Return the memory format of a federation; the choice is the same on every machine of a kind and at every start.

    The default is ``channels_last`` for modules that support both formats
    (:attr:`fedlit.core.parts.Parts.any_memory_format`) in single precision or bf16: always on a CUDA GPU, and on a CPU
    if at most half of the convolution weights must be reordered at every step (DenseNet, ResNet-50, MobileNet;
    ResNet-18 gains nothing).

    Returns:
        The format; "" for a model without 2-D convolutions.

    Raises:
        ConfigError: The setting is ``channels_last``, and the model has no 2-D convolution.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]
    if not layers:
        if wanted != "channels_last":
            return ""
        raise ConfigError(
            f"federation.memory_format: {type(module).__name__} has no 2-D convolutions for channels_last; leave it out"
        )
    if wanted is not None:
        return wanted
    weights = sum(layer.weight.numel() for layer in layers)
    turning = sum(layer.weight.numel() for layer in layers if not either_order(layer.weight))
    pays = fabric.device.type == "cuda" or 2 * turning <= weights
    # Only oneDNN and cuDNN, in single precision or lower, convolve faster.
    precise = fabric.double or any(p.dtype == torch.float64 for p in module.parameters())
    pays = pays and fabric.device.type in ("cpu", "cuda") and not precise and Parts.of(module).any_memory_format
    return "channels_last" if pays else "contiguous"


SHARE = 0.6
"""Largest share of a device's free memory for images; the model needs the rest."""


@dataclass(frozen=True)
class Placement:
    """Placement of the images; on the same device, batches are bit-identical for every placement.

    Attributes:
        name: ``mapped``, ``ahead`` (the next batch is read from the memory map while one trains) or ``resident``
            (the images are on the device).
        notice: Message to the user, or "".
    """

    name: Literal["mapped", "ahead", "resident"] = "mapped"
    notice: str = ""


def resolve_placement(
    wanted: Literal["auto", "cpu", "cuda"],
    device: torch.device,
    clients: Mapping[str, ClientData],
    test_sets: Mapping[str, Dataset],
    copies: int = 1,
) -> Placement:
    """Return the placement of the images for the setting ``data.device``; ``copies`` processes need one each.

    Raises:
        ConfigError: The setting is ``cuda``, but training is on another device or the data cannot be copied.
    """
    if device.type != "cuda":
        if wanted == "cuda":
            raise ConfigError(
                f"data.device: cuda needs a model that trains on a GPU, and this one trains on {device}; set "
                "fabric.accelerator: cuda, or use auto"
            )
        return Placement()
    parts = (part for data in clients.values() for part in (data.train, data.val, data.test))
    sets = [*(part for part in parts if part is not None), *test_sets.values()]
    images = [data for data in sets if isinstance(data, LabelledImages)]
    reason = "" if images else "they are not in an image store of fedlit"
    if on_cpu := {type(data.augment).__name__ for data in images if not _batches_on_device(data)}:
        reason = f"{' and '.join(sorted(on_cpu))} augments on the CPU"
    if wanted == "cpu" or reason:
        if wanted == "cuda":
            raise ConfigError(f"data.device: the data cannot be copied to {device}: {reason}; use auto")
        return Placement("ahead")
    stores = {id(data.store): data.store for data in images}
    needed, free = copies * sum(math.prod(store.shape) for store in stores.values()), free_memory(device)
    if needed <= SHARE * free:
        return Placement("resident")
    return Placement(
        "ahead",
        f"the images ({decimal(needed)}) do not fit into {SHARE:.0%} of the {decimal(int(free))} of free memory on "
        f"{device}: they are read ahead from the memory map",
    )


def free_memory(device: torch.device) -> int:
    """Return the number of free bytes on a GPU."""
    return torch.cuda.mem_get_info(device)[0]


def placed(
    clients: Mapping[str, ClientData],
    test_sets: Mapping[str, Dataset],
    name: Literal["mapped", "ahead", "resident"],
    device: torch.device,
) -> tuple[dict[str, ClientData], dict[str, Dataset]]:
    """Return clients and test sets with their images placed; each store is copied once."""
    copied: dict[int, ResidentStore] = {}

    def move(data: Dataset | None) -> Dataset | None:
        if name == "mapped" or not isinstance(data, LabelledImages) or not _batches_on_device(data):
            return data
        store = data.store
        if name == "resident":
            if id(store) not in copied:
                copied[id(store)] = ResidentStore(store, device)
            store = copied[id(store)]
        return data.placed(store, device)

    moved = {
        client: replace(data, train=move(data.train), val=move(data.val), test=move(data.test))
        for client, data in clients.items()
    }
    return moved, {test: move(data) for test, data in test_sets.items()}


def _batches_on_device(data: LabelledImages) -> bool:
    """Check if batches can be built on a device; torchvision's transforms run on the CPU, one image at a time."""
    return data.augment is None or getattr(data.augment, "on_device", False)
