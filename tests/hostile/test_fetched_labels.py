"""Labels that are known only once a batch is fetched: ``fedlit.fit`` from a script."""

import functools
import warnings

import pytest
import torch
from lightning.pytorch import LightningModule
from refusals import refused
from scripted import fit
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from fedlit.core.batches import BatchStream
from fedlit.models.steps import Classifier
from fedlit.objectives import BCE, AUCSaddle

pytestmark = pytest.mark.usefixtures("folder")
CLASSES = ("Edema", "Mass")


class Fetched(Dataset):
    """Images [1, 8, 8] and targets that only an index returns."""

    def __init__(self, targets: torch.Tensor) -> None:
        self.images, self.targets = torch.ones(len(targets), 1, 8, 8), targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple:
        return self.images[index], self.targets[index]


class Numbered(Dataset):
    """Has attributes of its own under names that fedlit's data sets use."""

    batch, sampler = 16, "random"

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_attributes_of_a_data_set_are_its_own():
    assert sorted(BatchStream(Numbered(), 4, 0, "a")[0].tolist()) == [0, 1, 2, 3]


class Linear(Classifier):
    """A classifier of fedlit with another network."""

    def __init__(self, objective=None, classes=CLASSES) -> None:
        super().__init__(classes)
        self.head = torch.nn.Linear(64, len(classes))
        self.train_with(objective, functools.partial(torch.optim.SGD, lr=0.1))

    def forward(self, images):
        return self.head(images.flatten(1))


class Own(LightningModule):
    """A module with its own loss of any targets; it declares the names of its outputs."""

    classes = CLASSES

    def __init__(self, loss=None) -> None:
        super().__init__()
        self.head, self.loss = torch.nn.Linear(64, 2), loss or torch.nn.MSELoss()

    def training_step(self, batch, batch_idx):
        return self.loss(self.head(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def clients(value: float, wrap=Fetched, dtype=torch.float32) -> dict:
    """Two clients with 12 training images; one image of the second has a label of this value."""
    labels = torch.tensor([[0, 1], [1, 0]], dtype=dtype).repeat(6, 1)
    other = labels.clone()
    other[5, 1] = value
    return {"north": wrap(labels), "south": wrap(other)}


def go(model, data, workers=1):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(model, data, schedule=None, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("value", "dtype"), [(-1, torch.float32), (255, torch.uint8)])
def test_they_are_refused_in_the_same_words_by_any_number_of_workers(value, dtype, workers):
    said = f"client 'south': expected training labels 0, 1 or NaN, found {value} for class 'Mass'"
    with refused("label-not-binary", said):
        go(Linear(), clients(value, dtype=dtype), workers)


@pytest.mark.parametrize(
    "model", [Linear(AUCSaddle()), Linear(torch.nn.BCEWithLogitsLoss()), Own(BCE())], ids=["saddle", "torch's", "own"]
)
def test_they_are_refused_for_every_loss_of_labels(model):
    with refused("label-not-binary", "'south'", "'Mass'"):
        go(model, clients(-1))


def test_they_are_refused_in_data_sets_that_are_joined():
    def joined(labels):
        return ConcatDataset([TensorDataset(torch.ones(len(labels), 1, 8, 8), labels)])

    with refused("label-not-binary", "'Mass'"):
        go(Linear(), clients(0.5, joined))


@pytest.mark.parametrize("wrap", [Fetched, lambda targets: TensorDataset(torch.ones(len(targets), 1, 8, 8), targets)])
def test_targets_of_a_loss_of_ones_own_stay_whatever_they_are(wrap):
    assert go(Own(), clients(255.0, wrap)).model.head.weight.isfinite().all()


@pytest.mark.parametrize(("index", "workers"), [(-1, 1), (3, 1), (255, 2)])
def test_an_index_that_is_no_class_is_named(index, workers):
    classes = ("a", "b", "c")
    labels = torch.tensor([0, 1, 2] * 4)
    fitted = go(Linear(classes=classes), {"north": Fetched(labels)})
    assert fitted.model.classes == classes
    labels[5] = index
    with refused("label-outside-classes", "to 2", index):
        go(Linear(classes=classes), {"north": Fetched(labels)}, workers)
