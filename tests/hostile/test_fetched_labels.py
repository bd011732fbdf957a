"""Labels that are known only once a batch is fetched: ``fedlit.fit`` from a script."""

import functools
import warnings

import numpy as np
import pytest
import torch
from engine_rounds import unprobed
from lightning.pytorch import LightningModule
from refusals import refused
from scripted import fit
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlit.core.batches import BatchStream
from fedlit.core.errors import ConfigError, DataError
from fedlit.core.examples import fetch
from fedlit.core.labels import SAMPLE, all_labels
from fedlit.data.flamby.heart import LabelledRows
from fedlit.data.in_memory import GivenClients
from fedlit.data.sampler import Sampler
from fedlit.models.steps import Classifier
from fedlit.objectives import BCE, AUCSaddle, FedLC

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
    with warnings.catch_warnings(), unprobed():
        warnings.simplefilter("ignore")
        return fit(model, data, schedule=None, workers=workers, figures=False)


@pytest.mark.parametrize(("value", "dtype", "workers"), [(-1, torch.float32, 1), (255, torch.uint8, 2)])
def test_they_are_refused_in_the_same_words_by_any_number_of_workers(value, dtype, workers):
    said = f"client 'south': expected training labels 0, 1 or NaN, found {value} for class 'Mass'"
    with refused(ConfigError, said):
        go(Linear(), clients(value, dtype=dtype), workers)


@pytest.mark.parametrize(
    "model", [Linear(AUCSaddle()), Linear(torch.nn.BCEWithLogitsLoss()), Own(BCE())], ids=["saddle", "torch's", "own"]
)
def test_they_are_refused_for_every_loss_of_labels(model):
    with refused(ConfigError, "'south'", "'Mass'"):
        go(model, clients(-1))


def test_targets_of_a_loss_of_ones_own_stay_whatever_they_are():
    assert go(Own(), clients(255.0)).model.head.weight.isfinite().all()


def test_an_index_that_is_no_class_is_named():
    classes = ("a", "b", "c")
    labels = torch.tensor([0, 1, 2] * 4)
    assert go(Linear(classes=classes), {"north": Fetched(labels)}).model.classes == classes
    for index, workers in ((-1, 1), (3, 2)):
        labels[5] = index
        with refused(DataError, "to 2", index):
            go(Linear(classes=classes), {"north": Fetched(labels)}, workers)


TRUE = torch.tensor([[0, 1], [1, 0], [0, 0], [float("nan"), 1], [0, 1]]).repeat(4, 1)
"""Labels of 20 examples."""

ATTRIBUTES = {
    "inverted": lambda y: 1 - y,
    "one class": lambda y: torch.where(torch.arange(2) == 1, 1 - y, y),
    "unknown as -1": lambda y: y.nan_to_num(-1),
    "-1, 0, 1": lambda y: 2 * y - 1,
    "too short": lambda y: y[:7],
    "indices": lambda y: y[:, 0].nan_to_num().long(),
    "a list": lambda y: y.tolist(),
    "an array": lambda y: y.double().numpy(),
    "names": lambda y: CLASSES,
    "a function": lambda y: lambda: y,
}


class Stored(Fetched):
    """Has labels as an attribute, too, and counts what is fetched."""

    def __init__(self, targets: torch.Tensor, labels: object) -> None:
        super().__init__(targets)
        self.labels, self.reads = labels, 0

    def __getitem__(self, index: int) -> tuple:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_an_attribute_counts_only_as_far_as_the_examples_agree(kind):
    found = all_labels(Stored(TRUE, ATTRIBUTES[kind](TRUE)), 2)
    torch.testing.assert_close(found, TRUE, rtol=0, atol=0, equal_nan=True)
    part = Subset(Stored(TRUE, ATTRIBUTES[kind](TRUE)), range(3, 20))
    torch.testing.assert_close(all_labels(part, 2), TRUE[3:], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("objective", [AUCSaddle, FedLC])
def test_constants_are_those_of_the_examples(objective):
    measured = []
    for labels in (None, ATTRIBUTES["inverted"](TRUE)):
        fitted = go(Linear(objective()), {"north": Stored(TRUE, labels), "south": Stored(TRUE, labels)})
        measured.append(torch.cat([value.flatten().double() for value in fitted.model.state_dict().values()]))
    assert torch.equal(*measured)


def test_a_mapped_attribute_is_not_refused():
    data = {name: Stored(TRUE, 2 * TRUE.nan_to_num() - 1) for name in ("north", "south")}
    assert go(Linear(), data).model.head.weight.isfinite().all()


def test_a_wrong_label_in_the_attribute_and_in_the_examples_is_refused_before_training():
    wrong = torch.where(TRUE == 1, 255, TRUE)
    with refused(ConfigError, "'south'", "255", "'Mass'"):
        go(Linear(), {"north": Stored(TRUE, TRUE), "south": Stored(wrong, wrong)})


def test_rare_positives_are_compared_as_well():
    rare, other = torch.zeros(4000, 1), torch.zeros(4000, 1)
    rare[1234], other[4321 % 4000] = 1, 1
    assert torch.equal(all_labels(Stored(rare, other), 1), rare)


def test_of_a_large_data_set_with_an_attribute_that_agrees_only_a_sample_is_fetched():
    labels = TRUE.repeat(200, 1)
    data = Stored(labels, labels)
    all_labels(data, 2)
    assert 0 < data.reads <= 2 * SAMPLE
    stream = BatchStream(Stored(labels, None), 4, 0, "a")
    assert torch.equal(stream.labels(2).nan_to_num(), stream.labels(2).nan_to_num())
    assert stream.dataset.reads == len(labels)


def test_a_data_set_without_an_agreeing_attribute_counts_nothing_in_a_report():
    data = GivenClients({"a": Stored(TRUE, 1 - TRUE), "b": Stored(TRUE, TRUE)}, CLASSES)
    counts = data.counts().set_index(["client", "class"])["positives"]
    assert counts["a"].isna().all()
    assert counts["b"].tolist() == [4, 12]


def test_labels_are_read_without_a_change_to_later_draws():
    class Drawing(Stored):
        def __getitem__(self, index):
            return super().__getitem__(index)[0] + torch.rand(()) + np.random.rand(), self.targets[index]

    drawn = []
    for read in (True, False):
        torch.manual_seed(0)
        np.random.seed(0)
        if read:
            all_labels(Drawing(TRUE, None), 2)
        drawn.append((torch.rand(()), np.random.rand()))
    assert drawn[0] == drawn[1]


def test_a_sampler_follows_the_examples():
    labels = torch.zeros(40, 1)
    labels[[3, 30]] = 1
    right, wrong = Stored(labels, labels), Stored(labels, 1 - labels)
    right.sampler = wrong.sampler = Sampler(0.5)
    one, other = (BatchStream(data, 8, 0, "a") for data in (right, wrong))
    assert torch.equal(one[0][1], other[0][1])
    assert one[0][1].sum() == 4


class Inverted(LabelledRows):
    """Inherits batches and labels of a data set of fedlit, and returns others."""

    def __getitem__(self, index):
        features, labels = super().__getitem__(index)
        return features, 1 - labels


class Delegating(Dataset):
    """Passes everything on to another data set, except its examples."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["dataset"], name)

    def __getitem__(self, index: int) -> tuple:
        features, labels = self.dataset[index]
        return features, 1 - labels


@pytest.mark.parametrize("wrap", [lambda *rows: Inverted(*rows), lambda *rows: Delegating(LabelledRows(*rows))])
def test_batches_and_labels_of_a_data_set_of_fedlit_are_not_those_of_another_getitem(wrap):
    names = np.arange(20).astype(str)
    data = wrap(torch.randn(20, 3), TRUE, names, names)
    expected = 1 - TRUE
    torch.testing.assert_close(fetch(data, torch.arange(20))[1], expected, equal_nan=True)
    torch.testing.assert_close(all_labels(data, 2), expected, equal_nan=True)


def test_examples_without_labels_have_none():
    with pytest.raises(DataError):
        all_labels(TensorDataset(torch.ones(4, 3)), 2)
