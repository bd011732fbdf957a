"""The batches of a client's local steps, and a thread that reads the next one, also of the next client, meanwhile."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.core.examples import fetch, makes_batches
from fedlit.core.labels import all_labels, check_batch, stored_labels
from fedlit.core.messages import Broadcast, Client, ClientState, Round
from fedlit.core.randomness import generator, keyed_hash, secret_generator


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

    private = False
    """Whether steps are private: then nothing leaves the client but what its aggregators send after noise."""

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


@dataclass
class Drawn:
    """The examples of a private step, as batches of one example each, of which there may be none.

    Attributes:
        batch_size: The plan's batch size, by which sums are divided: the number of examples must not be.
        generator: Draws the noise of the step.
    """

    examples: list[Any]
    batch_size: int
    generator: np.random.Generator


class PoissonStream(BatchStream):
    """Batches for differential privacy: every patient is drawn with probability ``rate``, and one of its images.

    Draws of different steps are independent, sizes vary, and a batch may be empty. An epoch has ``ceil(1 / rate)``
    steps. The draws and the noise of a step are a pure function of secret, client, position and question
    (:meth:`ask`): the same question gets the same answer, and another one gets independent draws.

    Args:
        dataset: A client's training set.
        batch_size: Mean number of patients of a step, nearly: the rate is this number divided by ``declared``.
        patients: [N], the patient of each example; "" for an example that is a patient of its own.
        secret: What only the client knows.
        client: Name of the client.
        classes: As in :class:`BatchStream`.
        declared: Number of patients that the client's site declares; by default those of the data, down to two digits.

    Attributes:
        named: Whether the patient of every example is known.
        counted: Number of patients in the data.
        declared: Number of patients by which the rate is computed.
        rate: Probability with which a patient is drawn.
    """

    private = True

    def __init__(
        self, dataset: Dataset, batch_size: int, patients: np.ndarray, secret: bytes, client: str,
        classes: Sequence[str] = (), declared: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(dataset, batch_size, 0, client, "patients", classes=classes)
        named = patients != ""
        people = np.where(named, patients, [f"\x1f{row}" for row in range(len(patients))])
        _, of_row, images = np.unique(people, return_inverse=True, return_counts=True)
        self._images = np.split(np.argsort(of_row, kind="stable"), np.cumsum(images)[:-1])
        self._secret, self._question = secret, b""
        self.named = bool(named.all())
        self.counted = len(self._images)
        self.declared = declared or rounded_down(self.counted)
        self.rate = min(batch_size / self.declared, 1.0)
        self.steps_per_epoch = math.ceil(1 / self.rate)

    def ask(self, client: Client, state: ClientState, down: Broadcast, rnd: Round) -> str:
        """Set the question that the next draws answer, and return its hash.

        It is all that a round's gradients depend on, the client's own state too: two answers with the same noise and
        different gradients would differ by no noise at all.
        """
        known = {name: value for name, value in vars(rnd).items() if name != "participation"}  # of the server alone
        own = {f"own {name}": tensor for name, tensor in state.tensors().items()}
        words = (client, known, self.rate, self.batch_size)
        self._question = keyed_hash(self._secret, words, down.tensors() | own)
        return self._question.hex()

    def __getitem__(self, position: int) -> Drawn:
        """Return the examples of a step, with checked labels."""
        examples = [fetch(self.dataset, index[None]) for index in self.indices(position)]
        for example in examples if self._classes else ():
            check_batch(self._client, example, self._classes)
        return Drawn(examples, self.batch_size, self._generator("noise", position))

    def indices(self, position: int) -> Tensor:
        """Return the indices of the drawn patients' images, one of each."""
        draw = self._generator("draw", position)
        drawn = draw.random(len(self._images)) < self.rate
        return torch.tensor([int(draw.choice(self._images[i])) for i in np.flatnonzero(drawn)], dtype=torch.long)

    def _generator(self, purpose: str, position: int) -> np.random.Generator:
        return secret_generator(self._secret, purpose, self._client, position, self._question.hex())


def rounded_down(patients: int) -> int:
    """Return a number of patients down to two digits, as a simulation declares it: 1,234 become 1,200."""
    unit = 10 ** max(len(str(patients)) - 2, 0)
    return patients // unit * unit


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


class ReadAhead:
    """A thread that reads the next batch while the current one trains.

    A data set splits its batches in two for this: ``take(indices)`` reads without drawing random numbers, and
    ``finish(taken)``, in the training thread, may draw. So draws come in the same order as without it.

    Attributes:
        following: Stream and position from which the next client starts, after the last batch of the current one.

    Args:
        device: The device of the batches; for a GPU they are copied to page-locked memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        choose = torch.cuda.set_device if self._pinned else lambda device: None
        self._thread = ThreadPoolExecutor(1, "fedlit-read-ahead", choose, (device,))
        self._asked: tuple[BatchStream, int] | None = None
        self._taken: Future | None = None
        self.following: tuple[BatchStream, int] | None = None

    def __call__(self, stream: BatchStream, position: int, last: bool) -> Any:
        """Return a batch and start reading the next one: after a client's last batch, the next client's first."""
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
