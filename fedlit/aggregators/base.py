"""The interface that every algorithm implements; its neutral defaults are federated averaging."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedlit.flat import FlatModel, Layout
from fedlit.messages import Client, Mask, Round, ServerState, State
from fedlit.schedules import Schedule

if TYPE_CHECKING:
    from fedlit.measuring import Measured


class Drift:
    """The correction that all aggregators together add to every local gradient of a round: ``bias + decay * w``.

    Attributes:
        bias: [P]; add to it in place.
        decay: [num_groups] float64; one number a group of the layout.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.bias = layout.zeros(device)
        self.decay = torch.zeros(layout.num_groups, dtype=torch.float64)

    def pull(self, centre: Tensor, strength: float) -> None:
        """Add the gradient of ``strength/2 * |w - centre|^2``; dual variables are never pulled."""
        primal = slice(0, self.layout.slices["dual"].start)
        self.bias[primal].sub_(centre[primal], alpha=strength)
        self.decay[self.layout.groups(("body", "norm", "head"))] += strength

    def reset(self) -> None:
        self.bias.zero_()
        self.decay.zero_()

    def close(self, mask: Mask) -> None:
        """Called once the round's drift is complete: what is private does not drift, what is dual does not decay."""
        for stretch in mask.unshared(self.layout):
            self.bias[stretch] = 0
        self.decay *= mask.owned
        self.decay[self.layout.groups(("dual",))] = 0
        self._spans = self.layout.spans(self.decay)

    def write(self, grad: Tensor, w: Tensor) -> None:
        """``grad = bias + decay * w`` in one pass, before a backward pass after which the dual slice changes sign."""
        for start, stop, decay in self._spans:
            torch.add(self.bias[start:stop], w[start:stop], alpha=decay, out=grad[start:stop])
        grad[self.layout.slices["dual"]].neg_()

    def add_to(self, grad: Tensor, w: Tensor) -> None:
        """``grad += bias + decay * w``."""
        grad += self.bias
        for start, stop, decay in self._spans:
            grad[start:stop].add_(w[start:stop], alpha=decay)


@dataclass
class ClientContext:
    """What a client-side hook sees and may change.

    Attributes:
        model: the flat model that the client is training; ``w``, ``grad`` and ``stats`` are its vectors.
        client: who trains.
        mask: what it shares.
        rnd: the round.
        window: the number of local steps of this client in this round.
        num_steps: steps taken so far in this round.
        drift: add to it in ``on_client_round_start``.
        down: what this aggregator's ``broadcast`` returned; read only.
        state: this client's own state of this aggregator; may be changed, names and shapes fixed.
        scratch: anything, for the length of the round.
        next_batch: draws one more batch from the client's stream.
        apply: what a function makes of a batch, on the fabric's device and in its precision.
        loss: what ``training_step`` makes of a batch and the number of the step, with its graph.
    """

    model: FlatModel
    client: Client
    mask: Mask
    rnd: Round
    window: int
    drift: Drift
    next_batch: Callable[[], Any]
    apply: Callable[[Callable[[Any], Any], Any], Any]
    loss: Callable[[Any, int], Tensor]
    down: State
    state: State
    scratch: dict[str, Any] = field(default_factory=dict)
    num_steps: int = 0

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def w(self) -> Tensor:
        return self.model.w

    @property
    def grad(self) -> Tensor:
        return self.model.grad

    @property
    def stats(self) -> Tensor:
        return self.model.stats


class Aggregator:
    """One algorithm: its client half and its server half.

    An aggregator holds hyper-parameters only. Server state, client state and messages are passed by argument, so
    the same object serves any number of clients in any number of processes. Several aggregators form a list:
    their drifts add, their masks multiply, their server updates run in order.
    """

    weights: Literal["examples", "uniform"] | None = None
    """Client weights that the algorithm is defined with; two different ones in a list are refused."""

    governs: str | None = None
    """The part of the model (``head``, ``norm``) whose sharing it decides; two that decide on one are refused."""

    batches_per_step: int = 1
    """Batches drawn for each local step (the largest of the list counts)."""

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        """Called once, before anything starts: refuse a schedule that the algorithm cannot follow.

        Raises:
            ConfigError: says which, and what to do.
        """

    def configure_model(self, module: nn.Module) -> None:
        """Called once per model instance, before the layout is read; may freeze parts of it."""

    def scope(self, layout: Layout, client: Client) -> Mask:
        """What this client shares; called once per client on both sides."""
        return Mask.everything(layout)

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Called once, on the server: its initial state, given the initial weights [P]."""
        return {}

    def client_state(self, layout: Layout) -> State:
        """Called once per client: its initial state, with every name that it will ever hold."""
        return {}

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Whether the server needs a measuring round before, or after, this round; the same answer on every rank."""
        return False

    def on_measure_end(
        self, state: State, server: ServerState, measured: "Measured", rnd: Round, when: Literal["before", "after"]
    ) -> None:
        """Called on the server after a measuring round that some aggregator asked for; may set ``server.w`` and stats."""

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server before a round; may change ``state``. Called again if the round is run again."""

    def broadcast(self, state: State, rnd: Round) -> State:
        """Called on the server before a round: what clients get beside the weights."""
        return {}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Called on a client before its first step; may add to ``ctx.drift``."""

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Called on a client at each step, by at most one aggregator of a list: fill ``ctx.grad``, return the loss.

        The default, training step and backward pass on the one batch, is the driver's.
        """
        raise NotImplementedError

    def on_before_optimizer_step(self, ctx: ClientContext) -> None:
        """Called on a client at each step; ``ctx.grad`` is the gradient that the optimizer will use."""

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        """Called on a client after each step."""

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Called on a client after its last step: additive vectors for the server.

        Vectors of P (or S) elements are masked like the weights (or statistics).
        """
        return {}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Called on the server with the means of what clients sent, before ``server.w += server.delta``.

        May change ``state``, and scale or replace ``server.delta`` [P], the mean change of the weights.
        """

    def on_stage_end(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server after the last round of a stage; may set ``server.w``, from which the next starts."""

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Called on the server after each round: numbers for the record, ``drift/...``."""
        return {}


def overriding(aggregators: Sequence[Aggregator], hook: str) -> list[int]:
    """Positions of the aggregators that implement a hook; the others cost nothing."""
    return [i for i, a in enumerate(aggregators) if getattr(type(a), hook) is not getattr(Aggregator, hook)]


def composed_name(aggregators: Sequence[Aggregator]) -> str:
    """What people call a list of aggregators; an empty one averages."""
    return "+".join(type(a).__name__ for a in aggregators) or "FedAvg"
