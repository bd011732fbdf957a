"""Federations of quadratics: one optimum per client, and saddles."""

import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys import Quadratic

from fedlit.data.in_memory import GivenClients


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
