"""Checks of the clients' training data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlit.core.labels import has_all_labels, stored_labels, wrong_labels
from fedlit.core.messages import ClientData
from fedlit.data.examples import fetched
from fedlit.federation.examinations.examination import Examination, examine

FETCHED = 8
"""Maximum number of clients whose examples are fetched; each fetch may decode an image."""


@dataclass(frozen=True)
class TrainingData:
    """The training data of a client, and the classes of its labels.

    Attributes:
        classes: Names of the classes; empty if training uses no labels.
    """

    client: str
    dataset: Dataset
    classes: Sequence[str]


class Labels(Examination[TrainingData]):
    """Labels are 0, 1 or NaN (unknown); labels that are only available on fetching are checked in every batch."""

    name = "labels"
    advice = "use 0 or 1, or NaN for unknown labels"

    def problem(self, data: TrainingData) -> str:
        """Name the first wrong label."""
        if not data.classes or not has_all_labels(data.dataset, data.classes):
            return ""
        return wrong_labels(data.client, torch.as_tensor(stored_labels(data.dataset)), data.classes)


class SameExamples(Examination[TrainingData]):
    """With the same seeds, fetching an example twice gives equal results: the data set has no internal random state."""

    name = "examples"
    advice = "use the global generators of torch, numpy and random, which are seeded for each client and round"

    def problem(self, data: TrainingData) -> str:
        """Fetch the first and the last example twice."""
        dataset = data.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        if type(dataset) is TensorDataset or type(dataset).__module__.startswith("fedlit."):
            return ""
        for number in (0, len(data.dataset) - 1):
            if fetched(data.dataset, number) != fetched(data.dataset, number):
                return (
                    f"client {data.client!r}: expected the same training example {number} after the same seeds, found "
                    f"another one: {type(dataset).__name__} has its own generator or counts its reads, so results "
                    f"would depend on the number of processes; {self.advice}"
                )
        return ""


OF_DATA: tuple[Examination[TrainingData], ...] = (Labels(), SameExamples())
"""Checks of a client's training data."""


def examine_clients(clients: Mapping[str, ClientData], classes: Sequence[str]) -> None:
    """Refuse wrong labels of a client, or examples of the first ones that differ when they are fetched again."""
    for number, (name, client) in enumerate(clients.items()):
        examine(TrainingData(name, client.train, classes), OF_DATA if number < FETCHED else OF_DATA[:1])
