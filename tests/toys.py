"""Small models and data that the tests train: milliseconds a round."""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedlit.data.federated import ClientData, FederatedDataModule
from fedlit.engines.base import Program
from fedlit.messages import Client
from fedlit.objectives import BCE
from fedlit.rounds import LocalTraining

CLASSES = ("Edema", "Effusion", "Nodule")


class ToyNet(LightningModule):
    """Convolution, BatchNorm, dropout and a linear head over 8x8 images: everything that can break bit equality."""

    def __init__(self, classes: tuple[str, ...] = CLASSES, lr: float = 0.1, momentum: float = 0.0, drop: float = 0.2) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(drop))
        self.head = nn.Linear(4 * 6 * 6, len(self.classes))
        self.objective = BCE()
        self.lr, self.momentum = lr, momentum

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.objective(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        logits = self(batch[0])
        self.log("loss", self.objective(logits, batch[1]))
        return logits

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).sigmoid()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


class Quadratic(LightningModule):
    """``curvature/2 (x - optimum)^2`` of one number, with both in the batch: what a textbook proves things on."""

    def __init__(self, start: float = 0.0, lr: float = 0.1) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([start]))
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        curvature, optimum = batch
        return (curvature / 2 * (self.x - optimum) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class ToyData(FederatedDataModule):
    """Random images whose labels follow their brightness, of sizes that differ between clients.

    Args:
        clients: number of clients.
        size: training images of the smallest client.
        labelled: number of classes that each client labels; client k starts at class k.
        batch_size: of every client.
    """

    def __init__(self, clients: int = 3, size: int = 12, labelled: int = 3, batch_size: int = 4) -> None:
        super().__init__(partition=None, batch_size=batch_size, image_size=8)
        self.number, self.size, self.labelled = clients, size, labelled

    @property
    def classes(self) -> tuple[str, ...]:
        return CLASSES

    def setup(self, stage: str | None = None) -> None:
        if self.clients:
            return
        for k in range(self.number):
            own = [(k + j) % len(CLASSES) for j in range(self.labelled)]
            parts = [self._part(100 * k + p, self.size + 2 * k, own if p < 2 else range(len(CLASSES))) for p in range(3)]
            self.clients[f"site-{k}"] = ClientData(f"site-{k}", tuple(CLASSES[c] for c in sorted(own)), *parts)

    def _part(self, seed: int, size: int, own) -> TensorDataset:
        g = torch.Generator().manual_seed(seed)
        images = torch.randn(size, 1, 8, 8, generator=g) + torch.randn(size, 1, 1, 1, generator=g)
        noise = torch.randn(size, len(CLASSES), generator=g)
        labels = (images.mean((1, 2, 3))[:, None] + 0.3 * noise > 0).float()
        hidden = [c for c in range(len(CLASSES)) if c not in own]
        labels[:, hidden] = torch.nan
        return TensorDataset(images, labels)


def program(module: LightningModule, aggregators: list, data: FederatedDataModule, weights: str = "examples",
            seed: int = 0, **training) -> Program:  # fmt: skip
    """What an engine needs, without a Session around it."""
    data.setup()
    sizes = {n: len(d.train) if weights == "examples" else 1 for n, d in data.clients.items()}
    clients = {n: Client(n, d.classes, len(d.train), sizes[n] / sum(sizes.values())) for n, d in data.clients.items()}
    return Program(module, aggregators, clients, data.clients, data.test_sets, LocalTraining(**training),
                   data.batch_size, data.eval_batch_size, seed)  # fmt: skip
