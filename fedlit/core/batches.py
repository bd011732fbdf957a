"""The batches of a client's local steps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.core.examples import fetch, makes_batches
from fedlit.core.labels import all_labels, check_batch, stored_labels
from fedlit.core.randomness import generator


class BatchStream:
    """Endless stream of batches; the batch at a position is a pure function of (seed, client, position).

    Each pass over the data is a fresh permutation. The last batch of a pass may be smaller, but a rest of fewer than
    ``smallest`` examples is dropped from that pass. BatchNorm refuses a batch of one. If the data set has a ``sampler``
    (:class:`fedlit.data.sampler.Sampler`), it draws the batches of local steps.

    Args:
        dataset: A client's training set of n >= 2 examples.
        batch_size: B.
        seed: Seed of the run.
        client: Name of the client.
        purpose: Streams of different purposes are independent.
        smallest: Least number of examples in a batch, unless the data set has fewer.
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
        smallest: int = 2,
    ) -> None:
        self.dataset, self.batch_size, self.smallest = dataset, batch_size, smallest
        self._client, self._classes = client, classes
        self._purpose = (seed, purpose, client)
        n = len(dataset)
        self.steps_per_epoch = n // batch_size + (n % batch_size >= max(min(smallest, n), 2))
        sampler = getattr(dataset, "sampler", None) if purpose == "batches" else None
        self._sampler = sampler if hasattr(sampler, "order") else None
        self._pass: tuple[int, Tensor | None] = (-1, None)
        self._labels: Tensor | None = None
        self.ahead = ahead if makes_batches(dataset) and hasattr(dataset, "take") else None

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in a pass over the data, without a rest that is dropped."""
        return min(self.steps_per_epoch * self.batch_size, len(self.dataset))

    def __getitem__(self, position: int) -> Any:
        """Return a batch, with checked labels."""
        batch = fetch(self.dataset, self.indices(position))
        if self._classes:
            check_batch(self._client, batch, self._classes)
        return batch

    def take(self, position: int) -> Any:
        """Return what the data set takes for a batch, without drawing random numbers."""
        return self.dataset.take(self.indices(position))

    def labels(self, classes: int) -> Tensor:
        """Return the labels [N, C] of the whole data set, which are read once."""
        if self._labels is None:
            self._labels = all_labels(self.dataset, classes)
        return self._labels

    def indices(self, position: int) -> Tensor:
        """Return the indices of the examples of a batch."""
        epoch, step = divmod(position, self.steps_per_epoch)
        current, order = self._pass
        if current != epoch:
            draw = generator(*self._purpose, epoch)
            if self._sampler is None:
                order = torch.randperm(len(self.dataset), generator=draw)
            else:
                labels = self.labels(stored_labels(self.dataset).shape[-1])
                order = self._sampler.order(labels, self.batch_size, draw)
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
