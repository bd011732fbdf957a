"""Messages between server and clients, and the states of both."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedlit.core.errors import ConfigError
from fedlit.core.examples import MapDataset
from fedlit.core.flat import Layout
from fedlit.core.system.devices import to_device

if TYPE_CHECKING:  # it takes seconds to import, and reports of past runs do not need it
    from torchmetrics import Metric

SCORED = "scored/"
"""Beginning of the names of the model that is scored, among the server's tensors."""

State = dict[str, Tensor]
"""Named tensors that one aggregator keeps; names and shapes are fixed over a run."""


@dataclass(frozen=True)
class Mask:
    """Groups of the flat vector that a client shares with the federation, and those that it keeps to itself.

    A group that it neither shares nor keeps it *lacks*, such as the row of a class that it does not label: it has the
    federation's values there and sends nothing.

    Attributes:
        owned: bool [num_groups], shared groups; see :class:`fedlit.core.flat.Layout`.
        kept: bool [num_groups], groups that the client keeps from round to round.
    """

    owned: Tensor
    kept: Tensor

    @classmethod
    def everything(cls, layout: Layout) -> "Mask":
        """Return the mask of a client that shares everything."""
        everywhere = torch.ones(layout.num_groups, dtype=torch.bool)
        return cls(everywhere, ~everywhere)

    def keeping(self, groups: list[int]) -> "Mask":
        """Return this mask with some groups (``layout.groups(...)``, ``layout.stats_group``) kept at the client."""
        kept = self.kept.clone()
        kept[groups] = True
        return Mask(self.owned & ~kept, kept)

    def lacking(self, groups: list[int]) -> "Mask":
        """Return this mask with some groups that the client neither shares nor keeps."""
        owned, kept = self.owned.clone(), self.kept.clone()
        owned[groups] = kept[groups] = False
        return Mask(owned, kept)

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.owned & other.owned, self.kept | other.kept)

    def unshared(self, layout: Layout) -> list[slice]:
        """Return the slices of the weight vector of which the client sends nothing."""
        return [slice(start, stop) for start, stop, owned in layout.spans(self.owned) if not owned]

    def sent(self, layout: Layout, size: int) -> list[slice]:
        """Return the slices of a vector of ``size`` values that the client sends; it is zero elsewhere."""
        if size == layout.size:
            return [slice(start, stop) for start, stop, owned in layout.spans(self.owned) if owned]
        unshared = size == layout.stats_size and not self.shares_stats(layout)
        return [] if unshared else [slice(0, size)]

    def cut(self, layout: Layout, vector: Tensor) -> Tensor:
        """Return the values of a vector [n] that the client sends."""
        return torch.cat([vector[:0], *(vector[part] for part in self.sent(layout, len(vector)))])

    def filled(self, layout: Layout, cut: Tensor, size: int) -> Tensor:
        """Invert :meth:`cut`: return a vector of ``size`` values, zero where the client sends nothing."""
        parts = self.sent(layout, size)
        whole = cut.new_zeros(size)
        for part, values in zip(parts, cut.split([part.stop - part.start for part in parts]), strict=True):
            whole[part] = values
        return whole

    def private(self, layout: Layout) -> list[slice]:
        """Return the slices of the weight vector that stay with the client."""
        return [slice(start, stop) for start, stop, kept in layout.spans(self.kept) if kept]

    def part(self, layout: Layout, w: Tensor) -> Tensor:
        """Return the elements of a weight vector that stay with the client, in flat order."""
        return torch.cat([w[:0], *(w[private] for private in self.private(layout))])

    def put(self, layout: Layout, part: Tensor, w: Tensor) -> None:
        """Invert :meth:`part`: write those elements into a vector; an empty part changes nothing."""
        offset = 0
        for private in self.private(layout) if len(part) else ():
            length = private.stop - private.start
            w[private] = part[offset : offset + length].to(w.device)
            offset += length

    def keeps_stats(self, layout: Layout) -> bool:
        """Return whether the statistics stay with the client."""
        return bool(self.kept[layout.stats_group])

    def shares_stats(self, layout: Layout) -> bool:
        """Return whether the client sends its statistics."""
        return bool(self.owned[layout.stats_group])


@dataclass(frozen=True)
class Client:
    """A client as the federation knows it.

    Attributes:
        name: Name of the client, the same on any rank or process.
        classes: Names of the classes that it labels.
        examples: Number of training examples n_k.
        weight: pi_k; the weights of all clients sum to 1.
        lr_factor: Factor of the learning rate of every parameter group, in addition to the round's factor.
        stand_ins: Classes whose labels its site hides, with the share of positives that a measuring round reports
            instead of their own; their scores are not reported.
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
        name: Name of the client.
        classes: Classes that it labels, in the order of the federation's classes.
        train: Training part; items are (image, labels [C]) with NaN for classes that the client does not label.
        val: Validation part, NaN as above; None if the client has none.
        test: Test part with all true labels; None if the client has none.
    """

    name: str
    classes: tuple[str, ...]
    train: MapDataset
    val: MapDataset | None = None
    test: MapDataset | None = None

    def __post_init__(self) -> None:
        if hasattr(self.name, "__getitem__") and not isinstance(self.name, str):
            raise ConfigError(
                f"ClientData: expected a name first, found a {type(self.name).__name__}; write ClientData(name, "
                "classes, train, val, test)"
            )
        # Names may come from NumPy arrays, and would be shown as np.str_('north').
        self.name, self.classes = str(self.name), tuple(map(str, self.classes))


@dataclass(frozen=True)
class Round:
    """Parameters of a round, known to server and clients.

    Attributes:
        index: Index of the round, from 0.
        stage: Stage of the schedule, from 0.
        lr_factor: Factor of the learning rate of every parameter group.
        window: Communication window, in ``unit``; 0 is a measuring round, in which nothing is trained.
        unit: ``steps``, or ``epochs`` (then each client takes its own number of steps).
        seed: Seed of the run.
        moments: Whether a measuring round re-estimates BatchNorm's statistics.
        restarts: Whether algorithms reset their state of a stage with each stage.
        cohort: Clients of this round, in the order in which their replies are added.
        participation: Per element [P] (or a scalar, if equal): the weights of its owners in the cohort, divided by
            those of all its owners; 0 if an element has no owner.
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
    """Message from the server to all clients: weights [P], statistics [S], one state per aggregator."""

    w: Tensor
    stats: Tensor
    aggregators: list[State]

    def tensors(self) -> State:
        """Return everything as named tensors."""
        named = {"w": self.w, "stats": self.stats}
        return named | {f"{i}/{k}": v for i, state in enumerate(self.aggregators) for k, v in state.items()}

    @classmethod
    def from_tensors(cls, tensors: State, aggregators: int) -> "Broadcast":
        """Invert :meth:`tensors` for a list of ``aggregators`` aggregators."""
        return cls(tensors["w"], tensors["stats"], [stripped(tensors, f"{i}/") for i in range(aggregators)])

    def to(self, device: torch.device) -> "Broadcast":
        """Return a copy on a device."""
        states = [{name: to_device(tensor, device) for name, tensor in state.items()} for state in self.aggregators]
        return Broadcast(to_device(self.w, device), to_device(self.stats, device), states)

    @property
    def nbytes(self) -> int:
        """Number of bytes sent to one client."""
        return sum(t.nbytes for t in self.tensors().values())


@dataclass
class Payload:
    """Message from a client to the server, the only one. Payloads add up; a sum of payloads is a payload.

    Attributes:
        vectors: 1-D, already multiplied by the client's weight, zero on what the client does not own. ``w`` and
            ``stats`` hold the change over the round, ``squares`` its squared norms (see
            :mod:`fedlit.core.rounds`); an aggregator's vectors are named ``<i>/<name>``.
        weight: pi_k, the client's share in the federation.
        mask_weight: [num_groups] float64, pi_k for groups that the client owns: the means' denominators.
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
        """Return it in the host's memory, without a copy if it is already there."""
        return Payload({k: v.cpu() for k, v in self.vectors.items()}, self.weight, self.mask_weight)

    def clone(self) -> "Payload":
        """Return a copy that shares no memory."""
        return Payload({k: v.clone() for k, v in self.vectors.items()}, self.weight, self.mask_weight.clone())

    @property
    def nbytes(self) -> int:
        """Number of bytes of its vectors and weights."""
        return sum(t.nbytes for t in (*self.vectors.values(), self.mask_weight)) + 8

    def nbytes_sent(self, mask: Mask, layout: Layout) -> int:
        """Return the number of bytes sent to the server: those of what the client shares."""
        unsent = sum(
            (len(vector) - sum(part.stop - part.start for part in mask.sent(layout, len(vector))))
            * vector.element_size()
            for vector in self.vectors.values()
        )
        return self.nbytes - unsent


@dataclass
class ServerState:
    """State of the server; it is checkpointed.

    Attributes:
        w: [P], the weights from which the next round starts.
        stats: [S], its statistics.
        aggregators: One state per aggregator.
        delta: [P], the round's update, which aggregators may scale or replace; there is none outside of
            ``on_aggregate_end``.
        scored: ``w`` [P] and ``stats`` [S] of the model that is scored, tested and exported in place of the one that
            trains, or {} if they are the same. An aggregator sets new tensors in ``on_round_end``.
    """

    layout: Layout
    w: Tensor
    stats: Tensor
    aggregators: list[State]
    delta: Tensor = field(init=False, repr=False)
    scored: State = field(default_factory=dict)

    def tensors(self) -> State:
        """Return everything as named tensors, for checkpoints."""
        return Broadcast(self.w, self.stats, self.aggregators).tensors() | {
            f"{SCORED}{name}": tensor for name, tensor in self.scored.items()
        }

    @classmethod
    def from_tensors(cls, tensors: State, aggregators: int, layout: Layout) -> "ServerState":
        """Invert :meth:`tensors` for a list of ``aggregators`` aggregators."""
        sent = Broadcast.from_tensors(tensors, aggregators)
        return cls(layout, sent.w, sent.stats, sent.aggregators, scored=stripped(tensors, SCORED))


@dataclass
class ClientState:
    """State of a client between its rounds; it never leaves the site, and is checkpointed there.

    Attributes:
        batches: Batches drawn so far, the position in the client's stream.
        w, stats: Elements that the client keeps to itself, in flat order; empty until its first round.
        optimizer: Optimizer state, kept only with ``optimizer_state: keep``.
        aggregators: One state per aggregator.
        buffers: The module's buffers that are not statistics and differ from their start.
    """

    batches: int
    w: Tensor
    stats: Tensor
    optimizer: State
    aggregators: list[State]
    buffers: State = field(default_factory=dict)
    file: ClassVar[None] = None
    """File of the state; a state in memory has none."""

    def load(self) -> "ClientState":
        """Return the state itself, which is in memory."""
        return self

    def write(self, mask: Mask, layout: Layout, w: Tensor, stats: Tensor) -> None:
        """Write the elements that the client keeps into a weight vector [P] and statistics [S]."""
        mask.put(layout, self.w, w)
        if mask.keeps_stats(layout) and len(self.stats):
            stats.copy_(self.stats)

    def tensors(self) -> State:
        """Return everything as named tensors, for shared memory and checkpoints."""
        named = {"batches": torch.tensor(self.batches), "w": self.w, "stats": self.stats}
        named |= {f"optimizer/{k}": v for k, v in self.optimizer.items()}
        named |= {f"buffers/{k}": v for k, v in self.buffers.items()}
        return named | {f"{i}/{k}": v for i, state in enumerate(self.aggregators) for k, v in state.items()}

    @classmethod
    def from_tensors(cls, tensors: State, aggregators: int) -> "ClientState":
        """Invert :meth:`tensors` for a list of ``aggregators`` aggregators."""
        parts = ("optimizer", "buffers", *range(aggregators))
        optimizer, buffers, *states = (stripped(tensors, f"{part}/") for part in parts)
        return cls(int(tensors["batches"]), tensors["w"], tensors["stats"], optimizer, states, buffers)


@dataclass
class Measured:
    """Results of a measuring round.

    Attributes:
        w: [P], the server's weights with the objective's variables at their closed-form optimum; in the measuring round
            before a run, at their start.
        stats: [S], the server's statistics with the objective's constants (the prior p) as measured.
        normalisation: [S], the same with BatchNorm's running mean and variance re-estimated at the server's weights:
            the variance is that of all clients' activations together, including the variance of their means. None if no
            aggregator needs it.
    """

    w: Tensor
    stats: Tensor
    normalisation: Tensor | None


@dataclass
class ClientReport:
    """A client's report about its round, to be logged; algorithms do not use it.

    Attributes:
        loss: Mean over the round's steps of the losses that ``training_step`` returned.
        logged: Means of the values that the module passed to ``self.log``.
        metrics: Metrics of torchmetrics among them, with their states; a site does not send them.
        error: Why the round failed, or "".
        still: Why its weights did not change, or "".
        rates: Learning rates of its parameter groups at the start of the round, without the client's own factor.
    """

    client: str
    steps: int
    examples: int
    loss: float
    seconds: float
    bytes_up: int
    logged: dict[str, float] = field(default_factory=dict)
    metrics: "dict[str, Metric]" = field(default_factory=dict)
    error: str = ""
    still: str = ""
    rates: list[float] = field(default_factory=list)


def stripped(tensors: State, prefix: str) -> State:
    """Return the tensors whose names begin with a prefix, without it in their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
