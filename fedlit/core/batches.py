"""The batches of a client's local steps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from fedlit.core.errors import TrainingError
from fedlit.core.labels import check_batch
from fedlit.core.randomness import generator


def fetch(dataset: Dataset, indices: Tensor) -> Any:
    """Return one batch: ``dataset.batch(indices)`` if the data set has that method, else its collated examples."""
    whole = getattr(dataset, "batch", None)
    if callable(whole):  # a user's data set may use this name for a number
        return whole(indices)
    return default_collate([dataset[i] for i in indices.tolist()])


def are_indices(labels: Tensor, classes: int) -> bool:
    """Return whether labels are whole numbers [B] or [B, 1], the class of each image."""
    return classes > 1 and not labels.is_floating_point() and labels.shape[1:] in ((), (1,))


def columns(labels: Tensor, classes: int) -> Tensor:
    """Return labels as float [B, C]; class indices become one-hot.

    Raises:
        TrainingError: An index is outside of the classes.
    """
    if are_indices(labels, classes):
        try:
            return nn.functional.one_hot(labels.long().flatten(), classes).float()
        except RuntimeError:
            wrong = (labels.min() if labels.min() < 0 else labels.max()).item()
            raise TrainingError(
                f"labels: expected a class from 0 to {classes - 1}, found {wrong}", key="label-outside-classes"
            ) from None
    return labels.float()


class BatchStream:
    """Endless stream of batches; the batch at a position is a pure function of (seed, client, position).

    Each pass over the data is a fresh permutation. The last batch of a pass may be smaller, but a single remaining
    example is dropped from that pass: BatchNorm refuses a batch of one. If the data set has a ``sampler``
    (:class:`fedlit.data.sampler.Sampler`), it draws the batches of local steps.

    Args:
        dataset: A client's training set of n >= 2 examples.
        batch_size: B.
        seed: Seed of the run.
        client: Name of the client.
        purpose: Streams of different purposes are independent.
        classes: Classes whose labels are checked in every batch, if they could not be checked earlier; none by default.
        ahead: Reads the next batch while the current one trains, and returns the one at a position, which may be a
            client's last; none by default.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int,
        client: str,
        purpose: str = "batches",
        ahead: "Callable[[BatchStream, int, bool], Any] | None" = None,
        classes: Sequence[str] = (),
    ) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self._client, self._classes = client, classes
        self._purpose = (seed, purpose, client)
        n = len(dataset)
        self.steps_per_epoch = n // batch_size + (n % batch_size > 1)
        sampler = getattr(dataset, "sampler", None) if purpose == "batches" else None
        self._sampler = sampler if hasattr(sampler, "order") else None
        self._pass: tuple[int, Tensor | None] = (-1, None)
        self.ahead = ahead if hasattr(dataset, "take") else None

    def __getitem__(self, position: int) -> Any:
        """Return a batch, with checked labels."""
        batch = fetch(self.dataset, self._indices(position))
        if self._classes:
            check_batch(self._client, batch, self._classes)
        return batch

    def take(self, position: int) -> Any:
        """Return what the data set takes for a batch, without drawing random numbers."""
        return self.dataset.take(self._indices(position))

    def _indices(self, position: int) -> Tensor:
        epoch, step = divmod(position, self.steps_per_epoch)
        current, order = self._pass
        if current != epoch:
            draw = generator(*self._purpose, epoch)
            if self._sampler is None:
                order = torch.randperm(len(self.dataset), generator=draw)
            else:
                order = self._sampler.order(self.dataset.labels, self.batch_size, draw)
            self._pass = (epoch, order)  # one assignment, because two threads read it
        return order[step * self.batch_size : (step + 1) * self.batch_size]


class Draws:
    """Consecutive batches of a stream from a position on.

    Attributes:
        drawn: Number of batches drawn so far.

    Args:
        expected: Expected number of draws; more are allowed.
    """

    def __init__(self, stream: BatchStream, position: int, expected: int = 0) -> None:
        self._stream, self._position, self._expected = stream, position, expected
        self.drawn = 0

    def next(self) -> Any:
        """Return the next batch."""
        position = self._position + self.drawn
        self.drawn += 1
        if self._stream.ahead is None:
            return self._stream[position]
        return self._stream.ahead(self._stream, position, self.drawn >= self._expected)
