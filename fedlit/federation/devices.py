"""What a federation makes of its device: the memory format, where pictures lie, recorded steps and compiled ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from rich.filesize import decimal
from torch import nn
from torch.utils.data import Dataset

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import FederationFabric
from fedlit.core.memory_format import convolutions, turned
from fedlit.core.messages import ClientData
from fedlit.core.parts import Parts
from fedlit.data.pictures.images import LabelledImages
from fedlit.data.pictures.resident import ResidentStore, nbytes


def resolve_memory_format(
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


SHARE = 0.6
"""Of a device's free memory, how much pictures may take; the rest is the model's."""


@dataclass(frozen=True)
class Placement:
    """What was chosen; on one device, batches are the same bits in each case.

    Attributes:
        name: ``mapped``, ``ahead`` (batches are taken from the memory map while the one before trains) or ``resident``
            (the pictures are on the device).
        notice: What the person at the keyboard should know of it, or "".
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
    """Choose where the pictures lie.

    Args:
        wanted: What ``data.device`` says.
        device: Where models are trained.
        clients: The clients' data.
        test_sets: The server's.
        copies: Number of processes that each need their own on the device.

    Raises:
        ConfigError: ``cuda`` was asked for where training is elsewhere, or for data that cannot be copied.
    """
    if device.type != "cuda":
        if wanted == "cuda":
            raise ConfigError(
                f"data.device: cuda is for models that train on a GPU, and these train on {device}; set fabric.accelerator: "
                "cuda, or use auto"
            )
        return Placement()
    sets = [*_of_clients(clients), *test_sets.values()]
    images = [data for data in sets if isinstance(data, LabelledImages)]
    reason = "" if images else "they are no pictures in a store of fedlit"
    if single := {type(data.augment).__name__ for data in images if not _can(data)}:
        reason = f"{' and '.join(sorted(single))} augments on the CPU"
    if wanted == "cpu" or reason:
        if wanted == "cuda":
            raise ConfigError(f"data.device: the data cannot be copied to {device}: {reason}; use auto")
        return Placement("ahead")
    stores = {id(data.store): data.store for data in images}
    needed, free = copies * sum(nbytes(store) for store in stores.values()), free_memory(device)
    if needed <= SHARE * free:
        return Placement("resident")
    return Placement(
        "ahead",
        f"the pictures ({decimal(needed)}) do not fit into {SHARE:.0%} of the {decimal(int(free))} that are free on {device}: "
        "they are read ahead from the memory map",
    )


def free_memory(device: torch.device) -> int:
    """Count the free bytes of a GPU."""
    return torch.cuda.mem_get_info(device)[0]


def placed(
    clients: Mapping[str, ClientData],
    test_sets: Mapping[str, Dataset],
    name: Literal["mapped", "ahead", "resident"],
    device: torch.device,
) -> tuple[dict[str, ClientData], dict[str, Dataset]]:
    """Clients and test sets with their pictures where a placement says; each store is copied once."""
    copied: dict[int, ResidentStore] = {}

    def move(data: Dataset | None) -> Dataset | None:
        if name == "mapped" or not isinstance(data, LabelledImages) or not _can(data):
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


def _of_clients(clients: Mapping[str, ClientData]) -> Iterable[Dataset]:
    return [part for data in clients.values() for part in (data.train, data.val, data.test) if part is not None]


def _can(data: LabelledImages) -> bool:
    """Whether a data set's batches can be made on a device; torchvision's transforms go image by image, on the CPU."""
    return data.augment is None or getattr(data.augment, "on_device", False)
