"""Data sets whose examples are not pairs of a float tensor and labels: they train, or an error names the client."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_rounds import played, unprobed
from PIL import Image
from refusals import refused
from scripted import STEPS, Net, fit, net, part
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from fedlit.aggregators import MOON, Aggregator, LocalSCGDAM
from fedlit.core.errors import ConfigError, DataError, TrainingError
from fedlit.core.fabric import make_fabric
from fedlit.core.objective import Objective
from fedlit.data.in_memory import GivenClients
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.models.steps import Classifier
from fedlit.objectives import BCE, AUCSaddle

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.filterwarnings("ignore")]
NAN = float("nan")
Example = Callable[[torch.Tensor, torch.Tensor, int], Any]


class Changed(Dataset):
    """The examples of another data set, changed by a function of image, labels and index."""

    def __init__(self, dataset: Dataset, change: Example) -> None:
        self.dataset, self.change = dataset, change

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.change(*self.dataset[index], index)


class Linear(Classifier):
    """A classifier of fedlit with a small network."""

    def __init__(self, objective: nn.Module | None = None, classes: tuple[str, ...] = ("Edema", "Mass")) -> None:
        torch.manual_seed(0)
        super().__init__(classes)
        self.head = nn.Linear(64, len(classes))
        self.train_with(objective, functools.partial(torch.optim.SGD, lr=0.1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.flatten(1))


class Deep(Linear):
    """One that trains features of one class."""

    def __init__(self) -> None:
        super().__init__(AUCSaddle(), ("Edema",))
        self.body = nn.Linear(64, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images.flatten(1)).relu())


class OfDicts(Net):
    """A module of a user that reads dicts by itself."""

    def training_step(self, batch, batch_idx):
        return F.binary_cross_entropy_with_logits(self(batch["image"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        return self(batch["image"])


def clients(change: Example, of: str = "both", splits: tuple[int, ...] = (0, 1)) -> dict:
    """Two clients; the examples of one of them, or of both, are changed in some splits. The last is the test set."""

    def parts(name: str, seed: int) -> tuple[Dataset, ...]:
        given = [part(size, seed + number) for number, size in enumerate((12, 8, 8)[: 2 + (2 in splits)])]
        changed = splits if of in (name, "both") else ()
        return tuple(Changed(data, change) if split in changed else data for split, data in enumerate(given))

    return {"north": parts("north", 1), "south": parts("south", 4)}


def weights(model: nn.Module, data: dict, rounds: int = 1, aggregators: Sequence[Aggregator] = ()) -> torch.Tensor:
    """Train without files; return all weights of the server."""
    federation = Federation([*aggregators], rounds=rounds, schedule=STEPS, workers=1)
    with unprobed():
        session = assemble(federation, model, GivenClients(data, model.classes, batch_size=4), make_fabric("cpu"))
    return played(session, rounds).w


def picture(image: torch.Tensor) -> Image.Image:
    return Image.fromarray((image[0] * 255).byte().numpy())


SAME = {
    "a dict": lambda x, y, i: {"image": x, "label": y, "patient": f"p{i}"},
    "three parts": lambda x, y, i: (x, y, f"p{i}"),
    "a list": lambda x, y, i: [x, y],
    "arrays": lambda x, y, i: (x.numpy(), y.numpy()),
    "whole numbers": lambda x, y, i: (x, y.long()),
    "bool": lambda x, y, i: (x, y.bool()),
}


def test_the_same_examples_in_another_form_train_to_the_same():
    expected = weights(Linear(AUCSaddle()), clients(lambda x, y, i: (x, y)))
    for form, change in SAME.items():
        assert torch.equal(weights(Linear(AUCSaddle()), clients(change)), expected), form


def test_a_module_of_ones_own_gets_dicts_as_they_are():
    torch.manual_seed(0)
    trained = weights(OfDicts(), clients(SAME["a dict"]))
    assert torch.equal(trained, weights(net(), clients(lambda x, y, i: (x, y))))


@pytest.mark.parametrize(("algorithm", "forms"), [(MOON, ["a dict"]), (LocalSCGDAM, ["a dict", "whole numbers"])])
def test_an_algorithm_that_reads_examples_reads_them_in_any_form(algorithm, forms):
    """LocalSCGDAM is for one class."""
    expected, *trained = (
        weights(Deep(), clients(lambda x, y, i, change=change: change(x, y[:1], i)), 2, [algorithm()])
        for change in (lambda x, y, i: (x, y), *(SAME[form] for form in forms))
    )
    for found in trained:
        assert torch.equal(found, expected)


def test_images_alone_can_be_predicted():
    fitted = fit(Linear(), clients(lambda x, y, i: (x, y)), rounds=1, figures=False)
    data = part(8, 9)
    images = Changed(data, lambda x, y, i: x)
    assert torch.equal(fitted.predict(images), fitted.predict(data))


def test_the_index_of_a_class_in_any_form_becomes_columns():
    columns = weights(Linear(), clients(lambda x, y, i: (x, torch.stack([1 - y[0], y[0]]))))
    for label in (lambda y: int(y[0]), lambda y: y[:1].long(), lambda y: y[0].bool()):
        assert torch.equal(weights(Linear(), clients(lambda x, y, i, label=label: (x, label(y)))), columns)


REFUSED = {
    "pictures": (lambda x, y, i: (picture(x), y), ConfigError, ("PIL.Image.Image", "part 0")),
    "no example": (lambda x, y, i: None if i == 0 else (x, y), ConfigError, ("example 0", "None")),
    "no example later": (lambda x, y, i: None if i == 5 else (x, y), DataError, ("example 5", "None")),
    "another size": (lambda x, y, i: (x[:, i == 5 :], y), DataError, ("[1, 7, 8]", "[1, 8, 8]")),
    "another key": (
        lambda x, y, i: {"image": x, "label": y} | ({} if i == 5 else {"note": 1}), DataError, ("'note'",)
    ),
    "other keys": (lambda x, y, i: {"img": x, "labels": y}, DataError, ("'img', 'labels'",)),
    "bytes": (lambda x, y, i: ((x * 255).byte(), y), DataError, ("torch.uint8", "v2.ToDtype")),
    "a class as a float": (lambda x, y, i: (x, y[0]), DataError, ("[4] of torch.float32",)),
    "nan": (lambda x, y, i: (x * NAN if i == 5 else x, y), DataError, ("example 5", "nan", "part 0", "step")),
    "inf": (lambda x, y, i: {"image": x / (i != 5), "label": y}, DataError, ("example 5", "inf", "'image'")),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_train_is_an_error_with_client_and_finding(what):
    change, kind, names = REFUSED[what]
    with refused(kind, "client 'south'", *names):
        fit(Linear(), clients(change, of="south", splits=(0,)))


def test_errors_of_examples_come_from_worker_processes_too():
    change, kind, names = REFUSED["nan"]
    with refused(kind, "client 'south'", *names):
        fit(Linear(), clients(change, of="south", splits=(0,)), workers=2)


@pytest.mark.parametrize(
    ("objective", "split"),
    [(None, 0), (None, 1), (AUCSaddle(), 0)],
    ids=["first round", "evaluation", "measuring round"],
)
def test_an_input_that_is_not_finite_is_named_where_it_is_met(objective, split):
    with refused(DataError, ("training client 'north'", "'val' of client 'north'")[split], "example 5"):
        fit(Linear(objective), clients(REFUSED["nan"][0], of="north", splits=(split,)))


def test_pictures_for_the_final_test_are_found_before_training():
    with refused(ConfigError, "'test' of client 'north'", "PIL.Image.Image"):
        fit(Linear(), clients(REFUSED["pictures"][0], of="north", splits=(2,)))


@pytest.mark.parametrize("value", [-1, 255])
def test_labels_of_an_evaluation_are_checked_as_well(value):
    wrong = clients(lambda x, y, i: (x, torch.where(y == 0, value, y)), of="south", splits=(1,))
    with refused(DataError, "'val' of client 'south'", "0, 1 or NaN", value):
        fit(Linear(), wrong)


def test_images_without_channels_are_named():
    torch.manual_seed(0)
    with refused(DataError, "client 'south'", "[B, 1, H, W]", "[4, 8, 8]"):
        fit(ImageClassifier(("Edema", "Mass"), "small_cnn"), clients(lambda x, y, i: (x[0], y), "south", (0,)))


class Mean(Objective):
    """A mean over the known labels, which is NaN if there are none."""

    def forward(self, logits, labels):
        known = ~labels.isnan()
        return F.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")[known].mean()


class Share(nn.Module):
    """The same as a quotient, whose gradient is NaN if there are none."""

    def forward(self, logits, labels):
        known = ~labels.isnan()
        terms = F.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")
        return (terms * known).sum() / known.sum()


class Own(Net):
    """A module of a user with an objective."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.loss = Mean()

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), labels=batch[1])


def partly_known(share: int = 4) -> dict:
    """Clients of which north knows the labels of a few images, so that some batches have none."""
    data = clients(lambda x, y, i: (x, y))
    for split in (0, 1):
        data["north"][split].change = lambda x, y, i: (x, y if i < share else torch.full_like(y, NAN))
    return data


def test_a_batch_without_known_labels_adds_nothing_under_any_objective():
    options = {"batch_size": 2, "eval_batch_size": 2, "figures": False}
    expected = fit(Linear(BCE()), partly_known(), **options)
    for model in (Linear(Mean()), Linear(Share()), Own()):
        trained = fit(model, partly_known(), **options)
        torch.testing.assert_close(trained.model.head.weight, expected.model.head.weight)
        for key in ("train/loss", "val/loss")[: 1 + isinstance(model, Classifier)]:
            assert trained.metrics[key].tolist() == pytest.approx(expected.metrics[key].tolist())


def test_an_objective_that_learns_from_images_without_labels_keeps_its_value():
    class Sharpened(Objective):
        def forward(self, logits, labels):
            return BCE()(logits, labels) + logits.square().mean()

    logits = torch.ones(2, 2, requires_grad=True)
    assert Sharpened()(logits, torch.full((2, 2), NAN)) == 1


def test_a_loss_that_takes_unknown_labels_for_numbers_is_advised():
    with refused(TrainingError, "client 'south'", "unknown labels (NaN) out of the loss"):
        fit(net(), clients(lambda x, y, i: (x, y * (NAN if i == 5 else 1)), of="south", splits=(0,)))


def nobody_knows(x, y, i):
    return x, torch.full_like(y, NAN)


class Consistent(Net):
    """A module that also learns from images without labels."""

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        return BCE()(logits, batch[1]) + logits.square().mean()


@pytest.mark.parametrize(
    ("model", "wrap"),
    [(Linear, True), (lambda: Linear(AUCSaddle()), False), (Own, True)],
    ids=["BCE, fetched", "saddle, tensors", "Own, fetched"],
)
def test_a_client_that_would_teach_nothing_is_refused(model, wrap):
    data = clients(nobody_knows, of="south", splits=(0,))
    if not wrap:
        images = data["south"][0].dataset.tensors[0]
        data["south"] = (TensorDataset(images, torch.full((12, 2), NAN)), *data["south"][1:])
    with refused(ConfigError, "client 'south'", "12 examples", "50%", "federation.clients"):
        fit(model(), data)


def test_a_client_without_labels_that_teaches_stays_and_so_does_one_with_a_single_label():
    one = clients(lambda x, y, i: (x, torch.where(torch.arange(2) == i - 10, y, NAN)), of="south", splits=(0,))
    nobody = clients(nobody_knows, of="south", splits=(0,))
    for model, data in ((Linear(BCE("negative")), nobody), (Consistent(), nobody), (Linear(), one)):
        assert fit(model, data, rounds=1, figures=False).model.head.weight.isfinite().all()
