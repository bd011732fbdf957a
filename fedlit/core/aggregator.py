"""The interface that every algorithm implements; its neutral defaults are federated averaging."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_, attrgetter
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedlit.core.argument_types import Checked
from fedlit.core.errors import ConfigError
from fedlit.core.flat import SLICES, FlatModel, Layout
from fedlit.core.hooks import mask_of, numbers_of, replaced_change, state_of
from fedlit.core.messages import Client, Mask, Measured, Payload, Round, ServerState, State
from fedlit.core.schedule import Schedule


class Correction:
    """The correction that all aggregators together add to every local gradient of a round: ``bias + decay * w``.

    Attributes:
        bias: [P]; add to it in place. It takes memory from when it is first asked for.
        decay: [num_groups] float64; one number a group of the layout.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.decay = torch.zeros(layout.num_groups, dtype=torch.float64)
        self._spans: list[tuple[int, int, float]] = []
        self._decays: Tensor | None = None

    @cached_property
    def bias(self) -> Tensor:
        """[P]; see above."""
        return self.layout.zeros(self.device)

    def fix_addresses(self) -> None:
        """Keep the decay of every element as a tensor [P], at one address, as a recorded step needs it."""
        self._decays = torch.zeros_like(self.bias)

    def pull(self, centre: Tensor, strength: float) -> None:
        """Add the gradient of ``strength/2 * |w - centre|^2``; dual variables are never pulled."""
        primal = slice(0, self.layout.slices["dual"].start)
        self.bias[primal].sub_(centre[primal], alpha=strength)
        self.decay[self.layout.groups(("body", "norm", "head"))] += strength

    def reset(self) -> None:
        """Start a round without any correction."""
        self.bias.zero_()
        self.decay.zero_()

    def close(self, mask: Mask) -> None:
        """Complete the round's correction: what a client does not share is not corrected, and no dual decays."""
        for segment in mask.unshared(self.layout):
            self.bias[segment] = 0
        self.decay *= mask.owned
        self.decay[self.layout.groups(("dual",))] = 0
        self._spans = self.layout.spans(self.decay)
        if self._decays is not None:
            for start, stop, decay in self._spans:
                self._decays[start:stop] = decay

    def write(self, grad: Tensor, w: Tensor) -> None:
        """``grad = bias + decay * w`` in one pass, before a backward pass after which the dual slice changes sign."""
        if self._decays is not None:
            torch.addcmul(self.bias, self._decays, w, out=grad)
        else:
            for start, stop, decay in self._spans:
                if decay:
                    torch.add(self.bias[start:stop], w[start:stop], alpha=decay, out=grad[start:stop])
                else:
                    grad[start:stop] = self.bias[start:stop]
        grad[self.layout.slices["dual"]].neg_()

    def add_to(self, grad: Tensor, w: Tensor) -> None:
        """``grad += bias + decay * w``."""
        grad += self.bias
        if self._decays is not None:
            grad.addcmul_(self._decays, w)
            return
        for start, stop, decay in self._spans:
            grad[start:stop].add_(w[start:stop], alpha=decay)


def _vector(name: str, doc: str) -> property:
    """A vector of the flat model: ``ctx.grad += other`` changes it in place, and ``ctx.grad = other`` copies into it."""

    def assign(context: "ClientContext", value: Tensor) -> None:
        vector = getattr(context.model, name)
        if value is not vector:
            vector.copy_(value)

    return property(attrgetter(f"model.{name}"), assign, doc=doc)


@dataclass
class ClientContext:
    """What a client-side hook sees and may change.

    Attributes:
        model: The flat model that the client is training; ``w``, ``grad`` and ``stats`` are its vectors.
        client: Who trains.
        mask: What it shares.
        rnd: The round.
        window: Number of local steps of this client in this round.
        num_steps: Number of steps taken so far in this round.
        rates: Learning rates of this round, one for each group of the optimizer.
        correction: What all aggregators add to every gradient of the round; add to it in ``on_client_round_start``.
        broadcast: What this aggregator's ``broadcast`` returned; read only.
        state: This client's own state of this aggregator; may be changed, names and shapes are fixed.
        start: [P], the weights at which the client began its round; read only, valid until the end of the round.
        scratch: Anything, for the length of the round.
        next_batch: Draws one more batch from the client's stream.
        apply: Returns what a function makes of a batch, on the fabric's device and in its precision.
        loss: Returns what ``training_step`` makes of a batch and the number of the step, with its graph.
    """

    model: FlatModel
    client: Client
    mask: Mask
    rnd: Round
    window: int
    correction: Correction
    next_batch: Callable[[], Any]
    apply: Callable[[Callable[[Any], Any], Any], Any]
    loss: Callable[[Any, int], Tensor]
    broadcast: State
    state: State
    start: Tensor
    scratch: dict[str, Any] = field(default_factory=dict)
    num_steps: int = 0
    rates: Sequence[float] = ()

    def __getattr__(self, name: str) -> Any:
        """Say what has another name now."""
        now = {"drift": ": it is called ctx.correction now", "down": ": it is called ctx.broadcast now"}.get(name, "")
        raise AttributeError(f"ClientContext has no attribute {name!r}{now}")

    layout = property(attrgetter("model.layout"), doc="Where everything lies in the vectors.")
    w = _vector("w", "[P], the client's weights; writing to it changes the module.")
    grad = _vector("grad", "[P], the gradient of the present step.")
    stats = _vector("stats", "[S], the client's BatchNorm statistics.")


class Aggregator(Checked):
    """One algorithm: its client half and its server half.

    An aggregator holds hyper-parameters only. Server state, client state and messages are passed by argument, so
    the same object serves any number of clients in any number of processes. Several aggregators form a list:
    their corrections add, their masks multiply, their server updates run in order.
    """

    weights: Literal["examples", "uniform"] | None = None
    """Client weights that the algorithm is defined with; two different ones in a list are refused."""

    governs: str | tuple[str, ...] | None = None
    """What it alone may decide in a list, in words: ``head`` or ``norm``, which is how this part of the model is shared, or a
    thing that would act twice, such as ``control variates``. Two that govern one thing are refused."""

    one_model: str = ""
    """Name of the algorithm to use instead where one model for all clients is wanted; "" where this one has it."""

    metrics_help: ClassVar[dict[str, str]] = {}
    """What its :meth:`diagnostics` are: a sentence for each name of a metric; ``fedlit fit --help`` shows them."""

    batches_per_step: int = 1
    """Batches drawn for each local step (the largest of the list counts)."""

    def implements(self, hook: str) -> bool:
        """Whether it has this hook of its own; hooks that nobody implements cost nothing."""
        return getattr(type(self), hook) is not getattr(Aggregator, hook)

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        """Called once, on the server, before anything starts: refuse a schedule that the algorithm cannot follow.

        Raises:
            ConfigError: Which schedule it was, and what to do.
        """

    def check_cohort(self, clients: int) -> None:
        """Called once, on the server, before anything starts: refuse a number of clients in a round that is of no use.

        Raises:
            ConfigError: What it needs.
        """

    def configure_model(self, module: nn.Module) -> None:
        """Called once per model instance, on both sides, before the layout is read; may freeze parts of the module."""

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Called once per client, on both sides: what the client shares; the masks of a list are combined."""
        return Mask.everything(layout)

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Called once, on the server: its initial state, with every name and final shape, given the initial weights [P]."""
        return {}

    def client_state(self, layout: Layout) -> State:
        """Called once per client, on its side: its initial state, with every name and final shape that it will ever hold."""
        return {}

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Called on the server around a round: whether it needs a measuring round before, or after, this one.

        Every rank must give the same answer.
        """
        return False

    def measures_moments(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Called on the server where it asks for a measuring round: whether that estimates BatchNorm's statistics anew.

        By default it does; where nobody needs them, ``Measured.normalisation`` is None and nothing of it travels.
        """
        return True

    def on_measure_end(
        self, state: State, server: ServerState, measured: Measured, rnd: Round, when: Literal["before", "after"]
    ) -> None:
        """Called on the server after a measuring round that some aggregator of the list asked for.

        May change ``state``, ``server.w`` [P] and ``server.stats`` [S].
        """

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server before a round, and again if the round is run again; may change ``state``."""

    def broadcast(self, state: State, rnd: Round) -> State:
        """Called on the server before a round and before evaluations: what clients get beside the weights.

        Nothing may be changed; clients read it as ``ctx.broadcast``.
        """
        return {}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Called on a client before its first step; may add to ``ctx.correction`` and change ``ctx.state``."""

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Called on a client at each step, of at most one aggregator of a list: fill ``ctx.grad``, return the loss.

        ``ctx.grad`` [P] may hold the correction already: add to it. ``batches`` are ``batches_per_step`` batches. The default,
        training step and backward pass on the one batch, is the driver's.
        """
        raise NotImplementedError

    def extra_loss(self, ctx: ClientContext, batch: Any) -> Tensor:
        """Called on a client wherever the loss of a batch is computed: a tensor of one element, which is added to it.

        It is part of ``ctx.loss``, so that it goes with whoever computes the gradient; in LocalSCGDAM it belongs to the outer
        loss. The batch is on the device. ``ctx.model.module`` is what is trained, with its weights of now; within
        ``with ctx.model.at(vector):`` it computes with another vector [P], such as ``ctx.start``, the weights at which the
        round began, or those of an earlier round in ``ctx.state``. Steps with it are not recorded (``cuda_graph``).
        """
        return torch.zeros(())

    def on_before_optimizer_step(self, ctx: ClientContext) -> None:
        """Called on a client at each step; ``ctx.grad`` [P], which may be changed, is the gradient of the optimizer's step."""

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        """Called on a client after each step; ``ctx.w`` [P] are the new weights, which may be changed."""

    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        """Called on a client after its last step, in list order: what it sends of its weights, in place of ``change``.

        Clipping, compression and normalisation of a client's update belong here. What is returned is masked and weighted
        afterwards, and the diagnostics are of it.

        Args:
            ctx: The client; ``ctx.start`` [P] are the weights at which it began, ``ctx.num_steps`` its steps since.
            change: [P], the change of its weights as earlier aggregators of the list left it, zero on what the client does
                not share. May be changed in place.

        Returns:
            The change to send, a tensor of the same shape and dtype.
        """
        return change

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Called on a client after its last step and :meth:`on_before_send`: additive vectors for the server.

        Vectors of P (or S) elements are masked like the weights (or statistics). May change ``ctx.state``; a change of
        ``ctx.w`` would be lost.
        """
        return {}

    def reduce(self, layout: Layout, replies: Sequence[Payload]) -> Payload:
        """Called on the server after a round, of at most one aggregator of a list: what stands for the sum of the replies.

        For medians and the like, which need single replies: ``replies`` has one for each client that took part, in cohort
        order, which may be changed in place. The default adds them up as they come. What is returned has vectors of the same
        names, sizes and types, and the sums of the replies' weights, by which it is divided. Measuring rounds are always added up.
        """
        raise NotImplementedError

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Called on the server with the means of what clients sent, before ``server.w += server.delta``.

        ``mean`` has the names that :meth:`on_client_round_end` returned, without the weights. May change ``state``, and
        scale or replace ``server.delta`` [P], the mean change of the weights.
        """

    def on_stage_end(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server after the last round of a stage; may set ``server.w`` [P], from which the next starts."""

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Called on the server after each round: numbers for the record, ``drift/...``."""
        return {}


def _in_order(hook: str) -> Callable[..., None]:
    """Make the hook of a composition that calls its parts' hooks, one after the other."""

    def call(self: "Composition", *given: Any) -> None:
        for part in self.parts:
            getattr(part, hook)(*given)

    return call


def _merged(hook: str) -> Callable[..., State]:
    """Make the hook of a composition that merges what its parts' hooks return."""

    def call(self: "Composition", *given: Any) -> State:
        merged: State = {}
        for part in self.parts:
            state = state_of(part, hook, *given)
            if twice := merged.keys() & state.keys():
                raise ConfigError(f"{type(self).__name__}: two of its parts use the name {min(twice)!r}; rename one")
            merged |= state
        return merged

    return call


class Composition(Aggregator, ABC):
    """An algorithm that is a fixed list of others, its parts.

    A subclass has a constructor with its hyper-parameters, which makes the parts. Every hook goes to the parts in order.
    Their states and messages are one: all parts are given the same dictionaries, in which each has names of its own. To
    a federation, and in a checkpoint, a composition is one aggregator.

    Args:
        parts: Aggregators, of which one at most computes the gradient, and one at most reduces the replies.

    Raises:
        ConfigError: Two parts compute the gradient, reduce the replies or govern one thing, or a part states client weights
            and the composition does not state the same.
    """

    @abstractmethod
    def __init__(self, *parts: Aggregator) -> None:
        self.parts = parts
        self.batches_per_step = max(part.batches_per_step for part in parts)
        name = type(self).__name__
        for part in parts:
            if part.weights not in (None, self.weights):
                raise ConfigError(
                    f"{name}: its part {type(part).__name__} has weights = {part.weights!r}; say so in {name} too"
                )
        if twice := governed_twice(parts):
            raise ConfigError(f"{name}: {twice}")
        self.governs = tuple(dict.fromkeys(thing for each in (self, *parts) for thing in governed(each)))

    def implements(self, hook: str) -> bool:
        """Whether the composition or one of its parts has this hook of its own."""
        return getattr(type(self), hook) is not getattr(Composition, hook) or bool(self._having(hook))

    check_schedule, check_cohort = _in_order("check_schedule"), _in_order("check_cohort")
    configure_model = _in_order("configure_model")
    server_state, client_state, broadcast = _merged("server_state"), _merged("client_state"), _merged("broadcast")
    on_measure_end, on_round_start = _in_order("on_measure_end"), _in_order("on_round_start")
    on_client_round_start, on_client_round_end = _in_order("on_client_round_start"), _merged("on_client_round_end")
    on_before_optimizer_step = _in_order("on_before_optimizer_step")
    on_after_optimizer_step = _in_order("on_after_optimizer_step")
    on_aggregate_end, on_stage_end = _in_order("on_aggregate_end"), _in_order("on_stage_end")

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Multiply the parts' masks."""
        return reduce(and_, (mask_of(part, layout, client) for part in self.parts))

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Whether a part asks for a measuring round."""
        return any(part.measures(rnd, when) for part in self.parts)

    def measures_moments(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Whether a part that asks for a measuring round needs BatchNorm's statistics."""
        return any(part.measures(rnd, when) and part.measures_moments(rnd, when) for part in self.parts)

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Let the one part compute that does."""
        (part,) = self._having("compute_gradient")
        return part.compute_gradient(ctx, batches)

    def extra_loss(self, ctx: ClientContext, batch: Any) -> Tensor:
        """Add up what the parts add."""
        return sum((part.extra_loss(ctx, batch) for part in self._having("extra_loss")), torch.zeros(()))

    def reduce(self, layout: Layout, replies: Sequence[Payload]) -> Payload:
        """Let the one part reduce that does."""
        (part,) = self._having("reduce")
        return part.reduce(layout, replies)

    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        """Let the parts replace the change, one after the other."""
        for part in self._having("on_before_send"):
            change = replaced_change(part, ctx, change)
        return change

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Merge the parts' diagnostics."""
        return {name: value for part in self.parts for name, value in numbers_of(part, state, layout).items()}

    def _having(self, hook: str) -> list[Aggregator]:
        return [part for part in self.parts if part.implements(hook)]


ALONE = {"compute_gradient": "compute the gradient", "reduce": "reduce the replies"}
"""Hooks that one aggregator of a list may have, and what those do that have them."""


def governed(aggregator: Aggregator) -> tuple[str, ...]:
    """Return all that an aggregator alone may decide."""
    things = aggregator.governs or ()
    return (things,) if isinstance(things, str) else tuple(things)


def governed_twice(aggregators: Sequence[Aggregator]) -> str:
    """Say which of a list govern one thing, or have a hook that one alone may have; "" where none do."""
    for hook, what in ALONE.items():
        having = [type(a).__name__ for a in aggregators if a.implements(hook)]
        if len(having) > 1:
            return f"{' and '.join(having)} each {what}; keep one"
    owners: dict[str, str] = {}
    for aggregator in aggregators:
        name = type(aggregator).__name__
        for thing in governed(aggregator):
            if thing in owners:
                what = (
                    f"decide how the {thing} is shared"
                    if thing in SLICES
                    else f"bring the {thing}, which would act twice"
                )
                return f"{owners[thing]} and {name} each {what}; keep one"
            owners[thing] = name
    return ""


def composed_name(aggregators: Sequence[Aggregator]) -> str:
    """What people call a list of aggregators; an empty one averages."""
    return "+".join(type(a).__name__ for a in aggregators) or "FedAvg"
