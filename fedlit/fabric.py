"""Lightning Fabric as a federation needs it."""

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
        return {k: float(torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in vs]).mean())
                for k, vs in self.logged.items()}  # fmt: skip


def make_fabric(accelerator: str = "auto", devices: int | str | list[int] = 1, num_nodes: int = 1,
                precision: str = "32-true") -> FederationFabric:  # fmt: skip
    """Fabric for a federation; several devices or nodes mean clients pinned to ranks.

    Args:
        accelerator: ``auto``, ``cpu``, ``cuda``, ``mps``.
        devices: processes a node, one device each.
        num_nodes: machines, started with ``torchrun`` or ``fabric run``.
        precision: ``32-true``, ``64-true`` or ``bf16-mixed``.

    Raises:
        ConfigError: a precision whose scaler or storage would break mean gradients.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"fabric.precision: expected one of {', '.join(PRECISIONS)}, found {precision!r} "
                          "(a loss scaler skips steps, which breaks mean gradients)")  # fmt: skip
    return FederationFabric(accelerator=accelerator, devices=devices, num_nodes=num_nodes, precision=precision,
                            strategy=RankPerClients() if _several(devices, num_nodes) else "auto")  # fmt: skip
