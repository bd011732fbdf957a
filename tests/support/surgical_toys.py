"""Sites that label different findings, and the network that they train together."""

import torch
from fdam_toys import Scorer
from simulation import federated

from fedlit.federation.federation import Federation
from fedlit.objectives import BCE

LR, WINDOW, ROUNDS = 0.3, 3, 4
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
