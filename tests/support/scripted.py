"""A small model and two clients for ``fedlit.fit``, as in a script."""

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

import fedlit
from fedlit.experiment.result import Fitted
from fedlit.schedules import ConstantSchedule

STEPS = ConstantSchedule(2, "steps")
WORKERS = {"workers": 1}


class Net(LightningModule):
    """A linear layer."""

    classes = ("Edema", "Mass")

    def __init__(self, width: int = 64):
        super().__init__()
        self.width = width
        self.head = torch.nn.Linear(width, 2)

    def forward(self, images):
        return self.head(images.flatten(1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def part(size: int = 12, seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 8, 8, generator=g)
    return TensorDataset(images, (images.mean((1, 2, 3))[:, None] * torch.tensor([1.0, -1.0]) > 0).float())


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def two() -> dict:
    return {"north": (part(12, 1), part(8, 2), part(8, 3)), "south": (part(10, 4), part(8, 5), part(8, 6))}


def fit(*given, **options) -> Fitted:
    model, clients = (*given, two())[:2] if given else (net(), two())
    return fedlit.fit(model, clients, **{"rounds": 2, "schedule": STEPS, "batch_size": 4, **WORKERS, **options})
