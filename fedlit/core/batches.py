"""Which examples a client's local step sees."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from fedlit.core.randomness import generator


def fetch(dataset: Dataset, indices: Tensor) -> Any:
    """One batch: ``dataset.batch(indices)`` where the data set has it, else its examples, collated."""
    whole = getattr(dataset, "batch", None)
    if whole is not None:
        return whole(indices)
    return default_collate([dataset[i] for i in indices.tolist()])


def columns(labels: Tensor, classes: int) -> Tensor:
    """Labels as float [B, C]: indices of classes [B] become one against the rest."""
    if labels.ndim == 1 and classes > 1 and not labels.is_floating_point():
        return nn.functional.one_hot(labels.long(), classes).float()
    return labels.float()


class BatchStream:
    """An endless stream of batches in which the batch at a position is a pure function of (seed, client, position).

    Each pass over the data is a fresh permutation. The last batch of a pass may be smaller, but a single left-over
    example is dropped from that pass: BatchNorm refuses a batch of one.

    Args:
        dataset: a client's training set of n >= 2 examples.
        batch_size: B.
        seed: of the run.
        client: whose stream it is.
        purpose: streams of different purposes are independent.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, client: str, purpose: str = "batches") -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self._purpose = (seed, purpose, client)
        n = len(dataset)
        self.steps_per_epoch = n // batch_size + (n % batch_size > 1)
        self._epoch, self._order = -1, None

    def __getitem__(self, position: int) -> Any:
        epoch, step = divmod(position, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = torch.randperm(len(self.dataset), generator=generator(*self._purpose, epoch))
            self._epoch = epoch
        return fetch(self.dataset, self._order[step * self.batch_size : (step + 1) * self.batch_size])


class Draws:
    """Batches of a stream from a position on, one after the other; ``drawn`` is how many so far."""

    def __init__(self, stream: BatchStream, position: int) -> None:
        self._stream, self._position = stream, position
        self.drawn = 0

    def next(self) -> Any:
        """Return the next batch."""
        batch = self._stream[self._position + self.drawn]
        self.drawn += 1
        return batch
