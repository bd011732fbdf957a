"""What travels between server and clients, and what they keep: four separate things with one owner each."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchmetrics import Metric

from fedlit.core.devices import to_device
from fedlit.core.flat import Layout

State = dict[str, Tensor]
"""Named tensors that one aggregator keeps; of fixed names and shapes over a run."""


@dataclass(frozen=True)
class Mask:
    """Which groups of the flat vector a client shares with the federation, and which it keeps to itself.

    What it neither shares nor keeps it *lacks*, such as the row of a class that it does not label: it has the
    federation's values there, and sends nothing.

    Attributes:
        owned: bool [num_groups], shared; see :class:`fedlit.core.flat.Layout`.
        kept: bool [num_groups], its own from round to round.
    """

    owned: Tensor
    kept: Tensor

    @classmethod
    def everything(cls, layout: Layout) -> "Mask":
        """A client that shares all."""
        everywhere = torch.ones(layout.num_groups, dtype=torch.bool)
        return cls(everywhere, ~everywhere)

    def keeping(self, groups: list[int]) -> "Mask":
        """This mask, with some groups (``layout.groups(...)``, ``layout.stats_group``) kept at the client."""
        kept = self.kept.clone()
        kept[groups] = True
        return Mask(self.owned & ~kept, kept)

    def lacking(self, groups: list[int]) -> "Mask":
        """This mask, with some groups that are none of the client's business."""
        owned, kept = self.owned.clone(), self.kept.clone()
        owned[groups] = kept[groups] = False
        return Mask(owned, kept)

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.owned & other.owned, self.kept | other.kept)

    def unshared(self, layout: Layout) -> list[slice]:
        """The segments of the weight vector of which the client sends nothing."""
        return [slice(start, stop) for start, stop, owned in layout.spans(self.owned) if not owned]

    def sent(self, layout: Layout, size: int) -> list[slice]:
        """The segments of a vector of so many values that the client sends; it is zero on the others."""
        if size == layout.size:
            return [slice(start, stop) for start, stop, owned in layout.spans(self.owned) if owned]
        kept = size == layout.stats_size and not self.shares_stats(layout)
        return [] if kept else [slice(0, size)]

    def cut(self, layout: Layout, vector: Tensor) -> Tensor:
        """The values of a vector [n] that the client sends."""
        return torch.cat([vector[:0], *(vector[part] for part in self.sent(layout, len(vector)))])

    def filled(self, layout: Layout, cut: Tensor, size: int) -> Tensor:
        """The inverse of :meth:`cut`: a vector of so many values, zero where the client sends nothing."""
        parts = self.sent(layout, size)
        whole = cut.new_zeros(size)
        for part, values in zip(parts, cut.split([part.stop - part.start for part in parts]), strict=True):
            whole[part] = values
        return whole

    def private(self, layout: Layout) -> list[slice]:
        """The segments of the weight vector that stay with the client."""
        return [slice(start, stop) for start, stop, kept in layout.spans(self.kept) if kept]

    def part(self, layout: Layout, w: Tensor) -> Tensor:
        """The elements of a weight vector that stay with the client, in flat order."""
        return torch.cat([w[:0], *(w[private] for private in self.private(layout))])

    def put(self, layout: Layout, part: Tensor, w: Tensor) -> None:
        """The inverse of :meth:`part`: write those elements into a vector; an empty part changes nothing."""
        offset = 0
        for private in self.private(layout) if len(part) else ():
            length = private.stop - private.start
            w[private] = part[offset : offset + length].to(w.device)
            offset += length

    def keeps_stats(self, layout: Layout) -> bool:
        """Whether the statistics stay with the client."""
        return bool(self.kept[layout.stats_group])

    def shares_stats(self, layout: Layout) -> bool:
        """Whether the client sends its statistics."""
        return bool(self.owned[layout.stats_group])


@dataclass(frozen=True)
class Client:
    """What the federation knows about a client.

    Attributes:
        name: identifies it, whatever rank or process it runs on.
        classes: what it labels, by name.
        examples: number of training examples n_k.
        weight: pi_k; the weights of all clients sum to 1.
        lr_factor: multiplies the learning rate of every parameter group, beside the round's factor.
        stand_ins: classes whose labels its site hides, with the share of positives that a measuring round reports in the
            place of their own; of their scores it reports none.
    """

    name: str
    classes: tuple[str, ...]
    examples: int
    weight: float
    lr_factor: float = 1.0
    stand_ins: tuple[tuple[str, float], ...] = ()


@dataclass
class ClientData:
    """One client's data; it never leaves the site.

    Attributes:
        name: The client.
        classes: What it labels, in the order of the federation's classes.
        train: Training part; items are (image, labels [C]) with NaN for classes that the client does not label.
        val: Validation part, NaN as above; None where the client has none.
        test: Test part with the full truth; None where the client has none.
    """

    name: str
    classes: tuple[str, ...]
    train: Dataset
    val: Dataset | None = None
    test: Dataset | None = None


@dataclass(frozen=True)
class Round:
    """What everybody knows about a round.

    Attributes:
        index: of the round, from 0.
        stage: of the schedule, from 0.
        lr_factor: multiplies the learning rate of every parameter group.
        window: communication window, in ``unit``; 0 is a measuring round, in which nothing is trained.
        unit: ``steps``, or ``epochs`` (then each client takes its own number of steps).
        seed: of the run.
        moments: of a measuring round, whether BatchNorm's statistics are estimated anew.
        restarts: whether what algorithms keep for a stage starts anew with each.
        cohort: the clients of this round, in the order in which their replies are added.
        participation: per element [P] (or a scalar, where equal): the sum of the weights of the owners in the
            cohort over the sum of the weights of all owners; 0 where nobody owns an element.
    """

    index: int
    stage: int
    lr_factor: float
    window: int
    unit: str
    seed: int
    first_of_stage: bool
    last_of_stage: bool
    restarts: bool = False
    moments: bool = True
    cohort: tuple[str, ...] = ()
    participation: Tensor = field(default_factory=lambda: torch.tensor(1.0))


@dataclass
class Broadcast:
    """Server to clients, the same for all: weights [P], statistics [S], one state an aggregator."""

    w: Tensor
    stats: Tensor
    aggregators: list[State]

    def tensors(self) -> State:
        """All of it as named tensors."""
        named = {"w": self.w, "stats": self.stats}
        return named | {f"{i}/{k}": v for i, state in enumerate(self.aggregators) for k, v in state.items()}

    @classmethod
    def from_tensors(cls, tensors: State, aggregators: int) -> "Broadcast":
        """The inverse of :meth:`tensors` for a list of ``aggregators`` aggregators."""
        return cls(tensors["w"], tensors["stats"], [stripped(tensors, f"{i}/") for i in range(aggregators)])

    def to(self, device: torch.device) -> "Broadcast":
        """Give it on a device."""
        states = [{name: to_device(tensor, device) for name, tensor in state.items()} for state in self.aggregators]
        return Broadcast(to_device(self.w, device), to_device(self.stats, device), states)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, to one client."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())


@dataclass
class Payload:
    """Clients to server: the only thing that travels. Payloads add up; a sum of payloads is a payload.

    Attributes:
        vectors: 1-D, already multiplied by the client's weight, zero on what the client does not own. ``w``
            and ``stats`` hold the change over the round, ``squares`` its squared norms (see
            :mod:`fedlit.core.diagnostics`); an aggregator's vectors are named ``<i>/<name>``.
        weight: pi_k, the client's share in the federation.
        mask_weight: [num_groups] float64, pi_k where the client owns the group: the means' denominators.
    """

    vectors: dict[str, Tensor]
    weight: float
    mask_weight: Tensor

    def add_(self, other: "Payload") -> None:
        """Add another payload, in place."""
        for name, vector in other.vectors.items():
            self.vectors[name].add_(vector)
        self.weight += other.weight
        self.mask_weight += other.mask_weight

    def cpu(self) -> "Payload":
        """Give it in the host's memory: itself, where it is there."""
        return Payload({k: v.cpu() for k, v in self.vectors.items()}, self.weight, self.mask_weight)

    def clone(self) -> "Payload":
        """Return a copy that shares no memory."""
        return Payload({k: v.clone() for k, v in self.vectors.items()}, self.weight, self.mask_weight.clone())

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors and weights."""
        tensors = [*self.vectors.values(), self.mask_weight]
        return sum(t.numel() * t.element_size() for t in tensors) + 8

    def nbytes_sent(self, mask: Mask, layout: Layout) -> int:
        """Bytes on the wire: those of what the client shares."""
        unsent = sum(
            (len(vector) - sum(part.stop - part.start for part in mask.sent(layout, len(vector))))
            * vector.element_size()
            for vector in self.vectors.values()
        )
        return self.nbytes - unsent


@dataclass
class ServerState:
    """What the server keeps: weights [P], statistics [S], one state an aggregator; checkpointed."""

    layout: Layout
    w: Tensor
    stats: Tensor
    aggregators: list[State]
    delta: Tensor | None = None
    """[P] the round's update while ``server_round`` runs; aggregators may scale or replace it."""


@dataclass
class ClientState:
    """What a client keeps between its rounds; it never leaves the site, and is checkpointed there.

    Attributes:
        batches: drawn so far; the position in the client's stream.
        w, stats: the elements that the client keeps to itself, in flat order; empty until it has some of its own: from
            its first round on, or from an earlier phase.
        optimizer: optimizer state, kept only with ``optimizer_state: keep``.
        aggregators: one state an aggregator.
        buffers: the module's own buffers that are no statistics, where they are not as at the start.
    """

    batches: int
    w: Tensor
    stats: Tensor
    optimizer: State
    aggregators: list[State]
    buffers: State = field(default_factory=dict)
    file: ClassVar[None] = None
    """Where it lies; of one in memory, nowhere."""

    def load(self) -> "ClientState":
        """Return the state itself, which is in memory."""
        return self

    def write(self, mask: Mask, layout: Layout, w: Tensor, stats: Tensor) -> None:
        """Put what the client has of its own into a weight vector [P] and statistics [S]."""
        mask.put(layout, self.w, w)
        if mask.keeps_stats(layout) and len(self.stats):
            stats.copy_(self.stats)

    def tensors(self) -> State:
        """All of it as named tensors, for shared memory and checkpoints."""
        named = {"batches": torch.tensor(self.batches), "w": self.w, "stats": self.stats}
        named |= {f"optimizer/{k}": v for k, v in self.optimizer.items()}
        named |= {f"buffers/{k}": v for k, v in self.buffers.items()}
        return named | {f"{i}/{k}": v for i, state in enumerate(self.aggregators) for k, v in state.items()}

    @classmethod
    def from_tensors(cls, tensors: State, aggregators: int) -> "ClientState":
        """The inverse of :meth:`tensors` for a list of ``aggregators`` aggregators."""
        parts = ("optimizer", "buffers", *range(aggregators))
        optimizer, buffers, *kept = (stripped(tensors, f"{part}/") for part in parts)
        return cls(int(tensors["batches"]), tensors["w"], tensors["stats"], optimizer, kept, buffers)


@dataclass
class Measured:
    """What a measuring round found.

    Attributes:
        w: [P] the server's weights, with the objective's own variables at their closed-form optimum; of the measuring round
            before a run as they start.
        stats: [S] the server's statistics, with the objective's constants (the prior p) as measured.
        normalisation: [S] the same with BatchNorm's running mean and variance estimated anew at the server's weights:
            the variance is that of all clients' activations together, the variance of their means included. None where
            nobody asked for it.
    """

    w: Tensor
    stats: Tensor
    normalisation: Tensor | None


@dataclass
class ClientReport:
    """How a client's round went, for the record; no part of the algorithm.

    Attributes:
        loss: mean over the round's steps of what ``training_step`` returned.
        logged: means of what the module passed to ``self.log``.
        metrics: metrics of torchmetrics among that, with what they have seen; a site keeps them.
        error: why the round failed, or "".
        still: Why its weights did not move, or "".
    """

    client: str
    steps: int
    examples: int
    loss: float
    seconds: float
    bytes_up: int
    logged: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    error: str = ""
    still: str = ""


def stripped(tensors: State, prefix: str) -> State:
    """Tensors whose names begin with a prefix, under their names without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
