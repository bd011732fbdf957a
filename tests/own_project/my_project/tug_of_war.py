"""Two hospitals that pull one number towards different values: a federation with a simple closed form."""

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

from fedlit.data import ClientData, FederatedDataModule

OPTIMA = {"east": (6, 1.0), "west": (2, -2.0)}
"""Number of examples of each hospital, and the value that it wants."""


class TwoHospitals(FederatedDataModule):
    """Every example of a hospital is the value that it wants."""

    def __init__(self) -> None:
        super().__init__(partition=None, batch_size=2)

    def setup(self, stage: str | None = None) -> None:
        for name, (examples, optimum) in OPTIMA.items():
            values = TensorDataset(torch.full((examples, 1), optimum))
            self.clients[name] = ClientData(name, (), values, values, None)


class OneNumber(LightningModule):
    """``(x - optimum)^2 / 2``, by gradient descent.

    Args:
        lr: Learning rate.
    """

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))
        self.lr = lr

    def training_step(self, batch, batch_idx):
        return ((self.x - batch[0]) ** 2).mean() / 2

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)
