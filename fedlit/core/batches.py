"""Which examples a client's local step sees."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from fedlit.core.errors import TrainingError
from fedlit.core.labels import check_batch
from fedlit.core.randomness import generator


def fetch(dataset: Dataset, indices: Tensor) -> Any:
    """One batch: ``dataset.batch(indices)`` where the data set has it, else its examples, collated."""
    whole = getattr(dataset, "batch", None)
    if callable(whole):  # a data set of somebody's own may call a number so
        return whole(indices)
    return default_collate([dataset[i] for i in indices.tolist()])


def columns(labels: Tensor, classes: int) -> Tensor:
    """Labels as float [B, C]: indices of classes [B] become one against the rest.

    Raises:
        TrainingError: an index is no class.
    """
    if labels.ndim == 1 and classes > 1 and not labels.is_floating_point():
        try:
            return nn.functional.one_hot(labels.long(), classes).float()
        except RuntimeError:
            lowest, highest = labels.min().item(), labels.max().item()
            raise TrainingError(
                f"labels: expected the class of each image, 0 to {classes - 1}, found {lowest if lowest < 0 else highest}"
            ) from None
    return labels.float()


class BatchStream:
    """An endless stream of batches in which the batch at a position is a pure function of (seed, client, position).

    Each pass over the data is a fresh permutation. The last batch of a pass may be smaller, but a single left-over
    example is dropped from that pass: BatchNorm refuses a batch of one. Where the data set has a ``sampler``
    (:class:`fedlit.data.sampler.Sampler`), the batches of local steps are drawn by that.

    Args:
        dataset: a client's training set of n >= 2 examples.
        batch_size: B.
        seed: of the run.
        client: whose stream it is.
        purpose: streams of different purposes are independent.
        classes: whose labels every batch is checked for, as nobody could before; by default none are.
        ahead: takes the next batch while one trains; by default nobody does.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int,
        client: str,
        purpose: str = "batches",
        ahead: "ReadAhead | None" = None,
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
        """Return a batch.

        Raises:
            ConfigError: a label is not 0, 1 or NaN.
        """
        batch = fetch(self.dataset, self._indices(position))
        if self._classes:
            check_batch(self._client, batch, self._classes)
        return batch

    def take(self, position: int) -> Any:
        """Return what the data set takes for a batch, without any draw; see :class:`ReadAhead`."""
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
            self._pass = (epoch, order)  # at once, as two threads ask
        return order[step * self.batch_size : (step + 1) * self.batch_size]


class ReadAhead:
    """Takes the batch that comes next in a thread, while another one trains.

    A data set has its batches in two parts for this: ``take(indices)`` reads and draws nothing, and ``finish(taken)``, in
    the thread that trains, may draw; so that the order of the draws is the same as without.

    Attributes:
        following: Stream and position from which the next client starts, once the present one has its last batch.

    Args:
        device: Where batches go; for a GPU they are copied to page-locked memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        choose = torch.cuda.set_device if self._pinned else lambda device: None
        self._thread = ThreadPoolExecutor(1, "fedlit-read-ahead", choose, (device,))
        self._asked: tuple[BatchStream, int] | None = None
        self._taken: Future | None = None
        self.following: tuple[BatchStream, int] | None = None

    def batch(self, stream: BatchStream, position: int, last: bool) -> Any:
        """Return a batch, and ask for the one after it; after a client's last one for the next client's first."""
        here = self._asked == (stream, position)
        taken = self._taken.result() if here else stream.take(position)
        after = self.following if last else (stream, position + 1)
        if after != self._asked:
            self._asked = after
            self._taken = self._thread.submit(self._take, *after) if after else None
        return stream.dataset.finish(taken)

    def _take(self, stream: BatchStream, position: int) -> Any:
        taken = stream.take(position)
        if not self._pinned:
            return taken
        return tuple(part.pin_memory() if part.device.type == "cpu" else part for part in taken)


class Draws:
    """Batches of a stream from a position on, one after the other.

    Attributes:
        drawn: How many so far.

    Args:
        stream: Whose.
        position: Of the first.
        expected: How many will be drawn, as far as is known; more may be.
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
        return self._stream.ahead.batch(self._stream, position, last=self.drawn >= self._expected)
