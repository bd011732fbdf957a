"""One finding on short vectors under the AUC saddle objective: what the momentum and compositional tests train."""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedlit.data.in_memory import GivenClients
from fedlit.objectives import AUCSaddle


class Scorer(LightningModule):
    """Vectors [B, D] to logits [B, C]: a body, and a linear head.

    Args:
        body: its layers; none is a linear model.
        classes: of the data.
        lr, momentum: of SGD.
        adam: Adam in place of SGD.
        objective: by default AUCSaddle.
        features: of the body.
    """

    def __init__(
        self,
        body: nn.Module | None = None,
        classes: tuple[str, ...] = ("Edema",),
        lr: float = 0.2,
        momentum: float = 0.0,
        adam: bool = False,
        objective: nn.Module | None = None,
        features: int = 4,
    ) -> None:
        super().__init__()
        self.classes, self.lr, self.momentum, self.adam = tuple(classes), lr, momentum, adam
        self.body = nn.Identity() if body is None else body
        self.head = nn.Linear(features, len(classes))
        self.objective = objective or AUCSaddle()
        if hasattr(self.objective, "build"):
            self.objective.build(len(classes))

    def forward(self, vectors: Tensor) -> Tensor:
        return self.head(self.body(vectors))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.objective(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.Adam(self.parameters(), lr=self.lr)
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=self.lr, momentum=self.momentum)


class Sites(GivenClients):
    """Clients whose positives differ in number and in direction.

    Args:
        clients: how many.
        batch_size: of every client; 12 is the whole training set.
        positives: of 12 examples at each client, in turn.
    """

    def __init__(self, clients: int = 3, batch_size: int = 5, positives: tuple[int, ...] = (2, 5, 7)) -> None:
        common, sets = torch.randn(4, generator=torch.Generator().manual_seed(99)), {}
        for k in range(clients):
            g = torch.Generator().manual_seed(100 + k)
            labels = (torch.arange(12) < positives[k % len(positives)]).float()[:, None]
            direction = common + torch.randn(4, generator=g)
            sets[f"site-{k}"] = TensorDataset(torch.randn(12, 4, generator=g) + labels * direction, labels)
        super().__init__(sets, ("Edema",), batch_size=batch_size)
