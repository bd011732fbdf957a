"""Images of one of three classes each, and modules that train on them.

Each image has a brightness of its own. It adds the same to the logits of all classes: a softmax does not see it, and
logits rank images by little else.
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fedlit.core.examples import columns
from fedlit.data import ClientData, FederatedDataModule
from fedlit.models import LogisticRegression
from fedlit.objectives import BCE, AUCSaddle

CLASSES = ("ant", "bee", "cat")


def examples(seed: int, size: int = 40, form: str = "indices") -> TensorDataset:
    """Rows of four numbers, the last of which is the brightness; labels as class indices, or as rows of 0 and 1."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (size,), generator=g)
    rows = torch.randn(size, 4, generator=g) + torch.cat([2 * F.one_hot(labels, 3), torch.zeros(size, 1)], 1)
    rows[:, 3] *= 20
    return TensorDataset(rows, labels if form == "indices" else F.one_hot(labels, 3).float())


class Insects(FederatedDataModule):
    """Two clients.

    Args:
        form: ``indices`` or ``rows``.
    """

    classes = CLASSES

    def __init__(self, form: str = "indices") -> None:
        super().__init__(partition=None, batch_size=8)
        self.form = form

    def setup(self, stage: str | None = None) -> None:
        for k in range(2):
            parts = (examples(10 * k + part, 40, self.form) for part in range(3))
            self.clients[f"site-{k}"] = ClientData(f"site-{k}", CLASSES, *parts)


def tilted(head: nn.Linear) -> None:
    """Let each logit follow its number and the brightness."""
    with torch.no_grad():
        head.weight.copy_(torch.cat([torch.eye(3), torch.ones(3, 1)], 1))
        head.bias.zero_()


class Tilted(LogisticRegression):
    """fedlit's classifier with such logits."""

    def __init__(self, classes=CLASSES, objective: nn.Module | None = None) -> None:
        super().__init__(4, classes, objective, lambda p: torch.optim.SGD(p, lr=1e-3))
        tilted(self.head)


class Cross(LightningModule):
    """Cross-entropy as in Lightning's examples; the validation returns logits.

    Args:
        form: of the labels.
        scores: What ``validation_step`` and ``predict_step`` return: ``logits``, ``logs`` or ``shares``.
    """

    classes = CLASSES

    def __init__(self, form: str = "indices", scores: str = "logits") -> None:
        super().__init__()
        self.form, self.scores = form, scores
        self.head = nn.Linear(4, 3)
        tilted(self.head)
        self.accuracy = MulticlassAccuracy(3)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = self.head(batch[0])
        self.accuracy(logits, batch[1] if self.form == "indices" else batch[1].argmax(1))
        self.log("accuracy", self.accuracy)
        loss = self.loss(logits, batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = self.head(batch[0])
        return {"logits": logits, "logs": logits.log_softmax(1), "shares": logits.softmax(1)}[self.scores]

    predict_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Layer(Cross):
    def __init__(self, form: str = "indices") -> None:
        super().__init__(form)
        self.criterion = nn.CrossEntropyLoss(torch.ones(3))

    def loss(self, logits, labels):
        return self.criterion(logits, labels)


class Logs(Cross):
    def loss(self, logits, labels):
        return F.nll_loss(logits.log_softmax(1), labels if self.form == "indices" else labels.argmax(1))


class Each(Cross):
    """A yes or no for each class, although an image has one class only."""

    def loss(self, logits, labels):
        one = F.one_hot(labels, 3).float() if self.form == "indices" else labels
        return F.binary_cross_entropy_with_logits(logits, one)


class Aside(Cross):
    """With a loss of fedlit that is not the one it trains."""

    def __init__(self, form: str = "indices") -> None:
        super().__init__(form)
        self.criterion = BCE()


class Saddle(Cross):
    """With a loss of fedlit that is no cross-entropy."""

    def __init__(self, form: str = "indices") -> None:
        super().__init__(form)
        self.criterion = AUCSaddle()
        self.criterion.build(3)

    def loss(self, logits, labels):
        return self.criterion(logits, columns(labels, 3))


class Summed(Cross):
    """A loss that is written out."""

    def loss(self, logits, labels):
        one = F.one_hot(labels, 3) if self.form == "indices" else labels
        return (logits.exp().sum(1).log() - (one * logits).sum(1)).mean()


OWN = {
    "function": (Cross, True), "layer": (Layer, True), "log-likelihood": (Logs, True), "each": (Each, False),
    "a loss aside": (Aside, True), "AUC": (Saddle, False),
}  # fmt: skip
"""Modules, and whether their loss is one over the classes."""


@torch.no_grad()
def logits_of(data: Dataset, module: LightningModule | None = None) -> Tensor:
    """The logits of a data set."""
    return (module or Cross()).head(data.tensors[0])
