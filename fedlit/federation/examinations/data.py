"""Checks of the clients' data before training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlit.core.batches import BatchStream
from fedlit.core.errors import DataError, TrainingError
from fedlit.core.examples import fetch, fetched
from fedlit.core.labels import agrees, all_labels, fetched_labels, has_exact_labels, stored_columns, wrong_labels
from fedlit.core.local_model import LocalModel
from fedlit.core.messages import Client, ClientData
from fedlit.core.module import loss_of, step_of
from fedlit.core.randomness import undisturbed
from fedlit.data.clients import parts_of
from fedlit.federation.examinations.examination import Examination, examine

FETCHED = 8
"""Maximum number of clients whose examples are fetched twice; each fetch may decode an image."""

MOST_CHECKED = 256
"""Maximum number of clients of whom two examples of each part are fetched, spread over all clients."""


@dataclass(frozen=True)
class TrainingData:
    """The training data of a client, or another part of its data, and the classes of the labels.

    Attributes:
        classes: Names of the classes; empty if training uses no labels.
        part: ``train``, ``val`` or ``test``.
    """

    client: str
    dataset: Dataset
    classes: Sequence[str]
    part: str = "train"

    @property
    def kind(self) -> type:
        """The class that returns the examples."""
        dataset = self.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        return type(dataset)

    @property
    def known(self) -> bool:
        """True if fedlit knows the code that returns the examples."""
        return self.kind is TensorDataset or self.kind.__module__.startswith("fedlit.")


class Labels(Examination[TrainingData]):
    """Labels are 0, 1 or NaN (unknown); labels that are only available on fetching are checked in every batch."""

    name = "labels"
    advice = "use 0 or 1, or NaN for unknown labels"

    def problem(self, data: TrainingData) -> str:
        """Name the first wrong label, if its example has it too."""
        labels = stored_columns(data.dataset, len(data.classes)) if data.classes else None
        wrong = "" if labels is None else wrong_labels(data.client, labels, data.classes)
        return wrong if wrong and (has_exact_labels(data.dataset, data.classes) or agrees(data.dataset, labels)) else ""


class FirstExamples(Examination[TrainingData]):
    """The first and the last example make a batch: both are tensors, arrays or numbers of the same shapes."""

    name = "first examples"
    advice = "convert examples to tensors of one shape in __getitem__"

    def problem(self, data: TrainingData) -> str:
        """Fetch both."""
        if data.known:
            return ""
        try:
            with undisturbed():
                fetch(data.dataset, torch.tensor([0, len(data.dataset) - 1]))
        except DataError as error:
            return f"{data.part!r} of client {data.client!r}: {error}"
        return ""


class SameExamples(Examination[TrainingData]):
    """With the same seeds, fetching an example twice gives equal results: the data set has no internal random state."""

    name = "examples"
    advice = "use the global generators of torch, numpy and random, which are seeded for each client and round"

    def problem(self, data: TrainingData) -> str:
        """Fetch the first and the last example twice."""
        for number in () if data.known else (0, len(data.dataset) - 1):
            if fetched(data.dataset, number) != fetched(data.dataset, number):
                return (
                    f"client {data.client!r}: expected the same training example {number} after the same seeds, found "
                    f"another one: {data.kind.__name__} has its own generator or counts its reads, so results "
                    f"would depend on the number of processes; {self.advice}"
                )
        return ""


@dataclass(frozen=True)
class Learners:
    """Clients with their data, and the model that they are about to train.

    Attributes:
        model: Makes the model.
    """

    clients: Mapping[str, Client]
    data: Mapping[str, ClientData]
    classes: Sequence[str]
    batch_size: int
    model: Callable[[], LocalModel]


class KnownLabels(Examination[Learners]):
    """Each client has a known training label, or learns without: others would count in the mean and teach nothing."""

    name = "known labels"
    advice = "leave the client out (federation.clients), or add labels"

    def problem(self, learners: Learners) -> str:
        """Try a step at the clients without any known label."""
        train = {name: learners.data[name].train for name in learners.clients}
        unknown = [
            name for name in train if learners.classes and not _has_known_label(train[name], len(learners.classes))
        ]
        model = learners.model() if unknown else None
        idle = [name for name in unknown if not _learns(model, train[name], learners.batch_size, name)]
        if not idle:
            return ""
        share = sum(learners.clients[name].weight for name in idle)
        return (
            f"client {', '.join(map(repr, idle))}: expected a known training label, found none in "
            f"{sum(len(train[name]) for name in idle)} examples, on which a step has no gradient (they would be "
            f"{share:.0%} of the mean); {self.advice}"
        )


def _has_known_label(dataset: Dataset, classes: int) -> bool:
    """Return whether a label is known; of a data set without stored labels, examples are fetched up to the first."""
    try:
        if not has_exact_labels(dataset, range(classes)):
            rows = torch.arange(len(dataset))
            if _any_known(fetched_labels(dataset, rows[:1], classes)):
                return True
        stored = all_labels(dataset, classes, fetching=False)
        return _any_known([stored] if stored is not None else fetched_labels(dataset, rows, classes))
    except DataError:  # it has other labels than of these classes
        return True


def _any_known(labels: Iterable[Tensor]) -> bool:
    return any(not each.isnan().all() for each in labels)


def _learns(local: LocalModel, dataset: Dataset, batch_size: int, client: str) -> bool:
    """Return whether a step on a client's data has a gradient."""
    local.train()
    training_step = step_of(local.module, "training_step")
    try:
        with undisturbed():
            batch = BatchStream(dataset, batch_size, 0, client)[0]
            loss = loss_of(local.module, local.apply(lambda moved: training_step(moved, 0), batch))
        parameters = [parameter for parameter in local.module.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    except TrainingError:  # the loss is a constant
        return False
    return any(each is not None and bool((each.isfinite() & (each != 0)).any()) for each in gradients)


OF_DATA: tuple[Examination[TrainingData], ...] = (Labels(), FirstExamples(), SameExamples())
"""Checks of a client's training data."""


def examine_clients(clients: Mapping[str, ClientData], classes: Sequence[str]) -> None:
    """Refuse wrong labels of a client, examples that make no batch, and those that differ when fetched again."""
    every = -(-len(clients) // MOST_CHECKED)
    for number, (name, client) in enumerate(clients.items()):
        examine(TrainingData(name, client.train, classes), OF_DATA[:1])
        for part, dataset in parts_of(client) if number % every == 0 else ():
            examine(TrainingData(name, dataset, classes, part), OF_DATA[1:2])
        if number < FETCHED:
            examine(TrainingData(name, client.train, classes), OF_DATA[2:])
