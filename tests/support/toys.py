"""Small models and data, which train in milliseconds per round."""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedlit.aggregators.composition import Composition
from fedlit.core.aggregator import Aggregator
from fedlit.core.local_model import LocalTraining
from fedlit.core.messages import Client
from fedlit.core.objective import Objective
from fedlit.data.federated import FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.federation.engines.base import Program
from fedlit.testing import CLASSES, ToyData, ToyNet

__all__ = [
    "CLASSES", "TOYS", "Problems", "Quadratic", "Saddle", "SaddleModule", "ToyData", "ToyNet", "TwoRates", "composed",
    "program", "with_objective",
]  # fmt: skip

TOYS = "--data toys.ToyData --model toys.ToyNet --logger false --federation.workers 1 --federation.rounds 2"
"""Options of a command that trains a toy."""


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


class Problems(GivenClients):
    """One quadratic per client: (curvature, optimum)."""

    def __init__(self, **problems: tuple[float, float]) -> None:
        sets = {name: TensorDataset(torch.full((4,), a), torch.full((4,), b)) for name, (a, b) in problems.items()}
        super().__init__(sets, batch_size=8)
        self.problems = problems


class Saddle(nn.Module):
    """``a/2 x^2 + x y - b/2 y^2`` with a and b of a client: minimised over x, maximised over y."""

    dual_parameters = ("y",)

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0]))
        self.y = nn.Parameter(torch.tensor([1.0]))

    def forward(self, a, b):
        return (a / 2 * self.x**2 + self.x * self.y - b / 2 * self.y**2).mean()


class SaddleModule(Quadratic):
    """Trains a saddle from x = y = 1."""

    def __init__(self) -> None:
        super().__init__()
        del self.x
        self.objective = Saddle()

    def training_step(self, batch, batch_idx):
        return self.objective(*batch)


class TwoRates(ToyNet):
    """SGD with one rate for the body and another for the head."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": self.body.parameters()}, {"params": self.head.parameters(), "lr": 0.2}]
        return torch.optim.SGD(groups, lr=0.1)


def with_objective(objective: Objective, **options) -> ToyNet:
    """Return a toy that trains another objective."""
    module = ToyNet(**options)
    module.objective = objective
    objective.build(len(module.classes))
    return module


def composed(*parts: Aggregator, **attributes) -> Composition:
    """Return a composition of parts, of a class of its own."""
    init = {"__init__": lambda self: Composition.__init__(self, *parts)}
    return type("Composed", (Composition,), init | attributes)()


def program(
    module: LightningModule,
    aggregators: list,
    data: FederatedDataModule,
    weights: str = "examples",
    seed: int = 0,
    **training,
) -> Program:
    """Make the program of an engine without a session."""
    data.setup()
    sizes = {n: len(d.train) if weights == "examples" else 1 for n, d in data.clients.items()}
    clients = {n: Client(n, d.classes, len(d.train), sizes[n] / sum(sizes.values())) for n, d in data.clients.items()}
    return Program(
        module,
        aggregators,
        clients,
        data.clients,
        data.test_sets,
        LocalTraining(**training),
        data.batch_size,
        data.eval_batch_size,
        seed,
    )
