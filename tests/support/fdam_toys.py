"""Short vectors at sites that differ, scored under the AUC saddle objective, or by findings that only some label."""

import itertools
from collections import OrderedDict
from collections.abc import Iterator

import saddle_toys
import torch
from simulation import federated
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedlit.core.batches import BatchStream
from fedlit.data import ClientData, FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.federation.federation import Federation
from fedlit.objectives import BCE, AUCSaddle

LR = 0.3


class Scorer(saddle_toys.Scorer):
    """A linear model, or with ``hidden`` a perceptron with BatchNorm, on vectors [B, D]."""

    def __init__(self, classes=("Edema",), hidden: int = 0, inputs: int = 4, lr: float = LR, **objective) -> None:
        body = [nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.Tanh()] if hidden else []
        objective = AUCSaddle(**objective)
        super().__init__(nn.Sequential(*body), classes, lr, objective=objective, features=hidden or inputs)

    @property
    def network(self) -> nn.Module:
        return nn.Sequential(OrderedDict(body=self.body, head=self.head))


class Sites(GivenClients):
    """Vectors whose positives differ from site to site: client -> (examples, share of positives, lacking classes)."""

    def __init__(self, sites, classes=("Edema",), batch_size: int = 5, inputs: int = 4) -> None:
        clients = {}
        for number, (name, (size, share, lacking)) in enumerate(sites.items()):
            g = torch.Generator().manual_seed(100 + number)
            positives = max(1, round(share * size))
            labels = torch.zeros(size, len(classes))
            for c in range(len(classes)):
                labels[torch.randperm(size, generator=g)[:positives], c] = 1.0
            direction = torch.randn(len(classes), inputs, generator=g)
            vectors = torch.randn(size, inputs, generator=g) + labels @ direction
            vectors += 0.5 * torch.randn(1, inputs, generator=g)
            labels[:, [classes.index(c) for c in lacking]] = torch.nan
            known = tuple(c for c in classes if c not in lacking)
            clients[name] = ClientData(name, known, TensorDataset(vectors, labels))
        super().__init__(clients, classes, batch_size=batch_size)
        self.inputs = inputs


def batches(data: FederatedDataModule, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """A client's endless minibatches in float64."""
    stream = BatchStream(data.clients[name].train, data.batch_size, 0, name)
    for position in itertools.count():
        vectors, labels = stream[position]
        yield vectors.double(), labels.double()


WINDOW, ROUNDS = 3, 3
FINDINGS = ("Cardiomegaly", "Effusion", "Nodule", "Pneumonia")
# Pneumonia is everybody's, Effusion two sites', Cardiomegaly and Nodule one site's.
SITES = {
    "north": (13, 0.3, ("Effusion", "Nodule")),
    "south": (21, 0.4, ("Cardiomegaly", "Nodule")),
    "east": (34, 0.6, ("Cardiomegaly",)),
}
FOUR = SITES | {"west": (16, 0.5, ("Cardiomegaly", "Effusion", "Nodule"))}


class Classifier(Scorer):
    """A perceptron with BatchNorm as if trained before, on binary cross-entropy."""

    def __init__(self, classes=FINDINGS, optimizer=torch.optim.SGD, **hyper) -> None:
        super().__init__(classes, hidden=6)
        self.objective = BCE()
        self.optimizer, self.hyper = optimizer, {"lr": LR, **hyper}
        g = torch.Generator().manual_seed(11)
        norm = self.body[1]
        for tensor, centre in ((norm.weight, 1), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 1)):
            tensor.data = centre + 0.6 * (torch.rand(6, generator=g) - 0.5)

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), **self.hyper)


def classifier(*arguments, **options) -> Classifier:
    torch.manual_seed(3)
    return Classifier(*arguments, **options).double()


def federation(aggregators, rounds=ROUNDS, window=WINDOW, **options) -> Federation:
    return federated(aggregators, rounds, window, **options)
