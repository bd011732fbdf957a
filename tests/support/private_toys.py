"""Private steps of small models: a network without BatchNorm and dropout, clients of one size, and canaries."""

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from toys import ToyData, ToyNet

from fedlit.core.fabric import make_fabric
from fedlit.core.local_model import LocalModel, LocalTraining


class PlainNet(ToyNet):
    """A toy in which every image is computed by itself."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.body[1], self.body[4] = nn.GroupNorm(2, 4), nn.Identity()


class EqualClients(ToyData):
    """Clients with as many images each as their batch size, by default."""

    def __init__(self, clients: int = 3, size: int = 24, labelled: int = 3, batch_size: int = 24) -> None:
        super().__init__(clients, size, labelled, batch_size)

    def _part(self, seed: int, size: int, seen) -> TensorDataset:
        return super()._part(seed, self.size, seen)


class Canaries(Dataset):
    """Examples whose gradients are orthogonal: example i is the unit vector of its number, times ``length``."""

    def __init__(self, members: np.ndarray, dimension: int, length: float) -> None:
        self.members, self.dimension, self.length = members, dimension, length

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> Tensor:
        vector = torch.zeros(self.dimension)
        vector[self.members[index]] = self.length
        return vector


class Linear(LightningModule):
    """A model whose gradient at an example is the example."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dimension))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = (batch @ self.w).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def local(module: LightningModule, aggregators=(), precision: str = "64-true") -> LocalModel:
    """Return a model as clients train it."""
    return LocalModel(make_fabric("cpu", precision=precision), module, list(aggregators), LocalTraining())
