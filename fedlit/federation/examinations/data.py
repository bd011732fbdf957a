"""What a client's training data may have got wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset, Subset, TensorDataset

from fedlit.core.labels import wrong_labels
from fedlit.core.messages import ClientData
from fedlit.data.examples import fetched
from fedlit.federation.examinations.examination import Examination, check

FETCHED = 8
"""Clients whose examples are fetched, at most; each fetch may decode an image."""


@dataclass(frozen=True)
class TrainingData:
    """The training data of a client, and the classes of its labels; none where it is not trained on labels.

    Attributes:
        client: Its name.
        dataset: Its training examples.
        classes: Names of the classes.
    """

    client: str
    dataset: Dataset
    classes: Sequence[str]


class Labels(Examination[TrainingData]):
    """Labels are 0, 1, or NaN where they are not known; those that a data set does not hold are looked at in every batch."""

    name = "labels"
    advice = "make them 0 or 1, or NaN where they are not known"

    def found(self, given: TrainingData) -> str:
        """Name the first label that is another."""
        return wrong_labels(given.client, given.dataset, given.classes)


class SameExamples(Examination[TrainingData]):
    """An example is the same when it is fetched again after the same seeds: its data set has no state of its own."""

    name = "examples"
    advice = "draw from the default generators of torch, numpy and random: they are seeded for each client and round"

    def found(self, given: TrainingData) -> str:
        """Fetch the first and the last example twice."""
        dataset = given.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        if type(dataset) is TensorDataset or type(dataset).__module__.startswith("fedlit."):
            return ""
        for number in (0, len(given.dataset) - 1):
            if fetched(given.dataset, number) != fetched(given.dataset, number):
                return (
                    f"client {given.client!r}: its training example {number} is another when it is fetched again after the "
                    f"same seeds: {type(dataset).__name__} has a generator of its own, or counts its reads, and clients take "
                    f"turns in any number of processes; {self.advice}"
                )
        return ""


OF_DATA: tuple[Examination[TrainingData], ...] = (Labels(), SameExamples())
"""What a client's training data are examined for."""


def check_clients(clients: Mapping[str, ClientData], classes: Sequence[str]) -> None:
    """Examine the labels of all clients, and a few examples of the first.

    Raises:
        ConfigError: An examination has found something.
    """
    for number, (name, client) in enumerate(clients.items()):
        check(TrainingData(name, client.train, classes), OF_DATA if number < FETCHED else OF_DATA[:1])
