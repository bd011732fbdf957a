"""Lightning Fabric as a federation needs it."""

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from fedlit.errors import ConfigError

PRECISIONS = ("32-true", "64-true", "bf16-mixed")


class RankPerClients(DDPStrategy):
    """Ranks that train different clients: no gradient is averaged between them, so modules stay as they are."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return module


class FederationFabric(Fabric):
    """Fabric whose ``log`` collects: what a module passes to ``self.log`` is averaged over its client's round.

    Attributes:
        logged: name -> values of the current round.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.logged: dict[str, list[Any]] = defaultdict(list)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.logged[name].append(value.detach() if torch.is_tensor(value) else value)

    def means(self) -> dict[str, float]:
        """Mean of each logged name over the round."""
        return {
            k: float(torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in vs]).mean())
            for k, vs in self.logged.items()
        }


def make_fabric(
    accelerator: str = "auto", devices: int | list[int] = 1, num_nodes: int = 1, precision: str = "32-true"
) -> FederationFabric:
    """Fabric for a federation; several devices or nodes mean clients pinned to ranks.

    Under ``torchrun`` or ``fabric run`` the launcher's numbers of processes and nodes stand in for the defaults.

    Args:
        accelerator: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: processes on this machine, one device each (or a list of device indices).
        num_nodes: machines; start one ``torchrun`` or ``fabric run`` on each.
        precision: ``32-true``, ``64-true`` or ``bf16-mixed``.

    Raises:
        ConfigError: a precision whose loss scaler or storage would break mean gradients.
    """
    if precision not in PRECISIONS:
        raise ConfigError(
            f"fabric.precision: expected one of {', '.join(PRECISIONS)}, found {precision!r} (a loss scaler skips "
            "steps and half-precision weights lose digits, which both break mean gradients)"
        )
    if "LOCAL_WORLD_SIZE" in os.environ and (devices, num_nodes) == (1, 1):
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        num_nodes = int(os.environ["WORLD_SIZE"]) // devices
    several = num_nodes > 1 or (devices if isinstance(devices, int) else len(devices)) > 1
    return FederationFabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=num_nodes,
        precision=precision,
        strategy=RankPerClients() if several else "auto",
    )


def launch(fabric: FederationFabric) -> None:
    """Start the other processes of this machine, unless a launcher has."""
    if os.environ.get("LT_CLI_USED", "0") == "0":
        fabric.launch()
