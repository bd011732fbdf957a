"""The interface that every algorithm implements; its neutral defaults are federated averaging."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from fedlit.core.errors import ConfigError
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.local_training import Correction
from fedlit.core.messages import Client, Mask, Measured, Payload, Round, ServerState, State
from fedlit.core.optimizer import LocalOptimizer
from fedlit.core.schedule import Schedule
from fedlit.core.system.argument_types import Checked


class _Vector:
    """A flat vector of the model: ``ctx.grad += x`` changes it in place, and ``ctx.grad = x`` copies into it."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, context: None, owner: type) -> "_Vector": ...

    @overload
    def __get__(self, context: "ClientContext", owner: type) -> Tensor: ...

    def __get__(self, context: "ClientContext | None", owner: type) -> "_Vector | Tensor":
        return self if context is None else getattr(context.model, self.name)

    def __set__(self, context: "ClientContext", value: Tensor) -> None:
        vector = getattr(context.model, self.name)
        if value is not vector:
            vector.copy_(value)


@dataclass
class ClientContext:
    """State of a client's round, which client-side hooks read and change.

    Attributes:
        model: The flat model that the client is training; ``w``, ``grad`` and ``stats`` are its vectors.
        client: The client that trains.
        mask: The groups that it shares.
        rnd: The round.
        window: Number of local steps of this client in this round.
        num_steps: Number of steps taken so far in this round.
        optimizer: The client's optimizer in this round.
        correction: Added to every gradient of the round by all aggregators; add to it in ``on_client_round_start``.
        broadcast: What this aggregator's ``broadcast`` returned; read-only.
        state: This client's state of this aggregator; values may change, names and shapes are fixed.
        start: [P], the weights at which the client began its round; read-only, valid until the end of the round.
        scratch: Any values, kept until the end of the round.
        next_batch: Draws one more batch from the client's stream.
        apply: Applies a function to a batch, on the fabric's device and in its precision.
        loss: Returns the loss of ``training_step`` for a batch and a step number, with its graph unless it is called
            under ``torch.no_grad()``.
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
    optimizer: LocalOptimizer
    scratch: dict[str, Any] = field(default_factory=dict)
    num_steps: int = 0

    w = _Vector("[P], the client's weights; writing to it changes the module.")
    grad = _Vector("[P], the gradient of the current step.")
    stats = _Vector("[S], the client's BatchNorm statistics.")

    @property
    def rates(self) -> list[float]:
        """Learning rates of this round, one per parameter group."""
        return self.optimizer.rates

    @property
    def layout(self) -> Layout:
        """The positions of all parameters and statistics in the vectors."""
        return self.model.layout


class Aggregator(Checked):
    """Base class of algorithms, with client-side and server-side hooks.

    An aggregator holds only hyper-parameters. Server state, client state and messages are arguments of its hooks, so
    the same object serves any number of clients in any number of processes. Several aggregators form a list: their
    corrections add, their masks multiply, and their server updates run in order.
    """

    weights: Literal["examples", "uniform"] | None = None
    """Client weights that the algorithm is defined with. Two different ones in a list are refused."""

    optimizer_state: Literal["reset"] | None = None
    """``reset`` if the algorithm is defined only for clients' optimizers that start afresh in each round."""

    governs: str | tuple[str, ...] | None = None
    """What only this algorithm of a list may decide: ``head`` or ``norm``, which is how this part of the model is
    shared, or a term that would act twice, such as ``control variates``. Two aggregators that govern the same thing
    are refused."""

    one_model: str = ""
    """Name of the algorithm to use instead if one model for all clients is wanted; "" if this algorithm trains one."""

    private: ClassVar[bool] = False
    """True for a :class:`PrivateAggregator`."""

    metrics_help: ClassVar[dict[str, str]] = {}
    """Descriptions of its :meth:`diagnostics`, one sentence per metric name; ``fedlit fit --help`` shows them."""

    batches_per_step: int = 1
    """Number of batches drawn for each local step (the largest of the list counts)."""

    def implements(self, hook: str) -> bool:
        """Return whether the class overrides this hook; a hook that no aggregator overrides costs nothing."""
        return getattr(type(self), hook) is not getattr(Aggregator, hook)

    def check_schedule(self, schedule: Schedule, rounds: int) -> None:
        """Called once, on the server, before anything starts: refuse a schedule that the algorithm cannot follow.

        Raises:
            ConfigError: Names the schedule and the fix.
        """

    def check_cohort(self, clients: int) -> None:
        """Called once, on the server, before anything starts: refuse a number of clients per round that is too small.

        Raises:
            ConfigError: Names the number that it needs.
        """

    def client_weight(self, client: Client, counts: Tensor) -> float:
        """Called once per client, on the server, before anything starts: return its weight in every mean.

        All means follow it: of the weights, of BatchNorm's statistics, of vectors and of measured values. The results
        are divided by their sum. In a list, each aggregator gets the weights of the one before.

        Args:
            client: The client; ``client.weight`` is the weight that it has without this hook.
            counts: [2, C], positives and negatives of each class among its training labels, in float64; NaN where they
                are unknown or the site's policy hides them.

        Returns:
            A finite number above 0.
        """
        return client.weight

    def configure_model(self, module: nn.Module) -> None:
        """Called once per model instance, on both sides, before the layout is read; may freeze parts of the module."""

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Called once per client, on both sides: return what the client shares; a list's masks are combined."""
        return Mask.everything(layout)

    def server_state(self, layout: Layout, w: Tensor) -> State:
        """Called once, on the server: return its initial state, given the initial weights [P].

        It has every name and final shape that the state will ever have.
        """
        return {}

    def client_state(self, layout: Layout) -> State:
        """Called once per client, on its side: return its initial state, with every name and its final shape."""
        return {}

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Called on the server around a round: return whether it needs a measuring round before, or after, this one.

        Every rank must give the same answer.
        """
        return False

    def measures_moments(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Called if it asks for a measuring round: return whether that round re-estimates BatchNorm's statistics.

        The default is True. If no aggregator needs them, ``Measured.normalisation`` is None and they are not sent.
        """
        return True

    def on_measure_end(
        self, state: State, server: ServerState, measured: Measured, rnd: Round, when: Literal["before", "after"]
    ) -> None:
        """Called on the server after a measuring round that some aggregator of the list asked for.

        May change ``state``, ``server.w`` [P] and ``server.stats`` [S].
        """

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server before a round, and again if the round is repeated; may change ``state``."""

    def on_clients_change(self, state: State, server: ServerState) -> bool:
        """Called on the server where a run across sites goes on with other clients than before; may change ``state``.

        By default an algorithm that keeps something on one side goes on as it is.

        Returns:
            Whether all that algorithms keep at clients starts afresh; a client keeps its own part of the model.

        Raises:
            ConfigError: The algorithm cannot go on.
        """
        if self.implements("server_state") and self.implements("client_state"):
            raise ConfigError(
                f"{type(self).__name__} keeps state at the server that belongs to state at its clients, and has no "
                "on_clients_change, which says what becomes of it with other clients; resume with the first clients"
            )
        return False

    def broadcast(self, state: State, rnd: Round) -> State:
        """Called on the server before a round and before evaluations: return what clients get besides the weights.

        It must change nothing; clients read the result as ``ctx.broadcast``.
        """
        return {}

    def on_client_round_start(self, ctx: ClientContext) -> None:
        """Called on a client before its first step; may add to ``ctx.correction`` and change ``ctx.state``."""

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Called on a client at each step, for at most one aggregator of a list: fill ``ctx.grad``, return the loss.

        ``ctx.grad`` [P] may already hold the correction: add to it. ``batches`` has ``batches_per_step`` batches. By
        default the federation calls the training step and the backward pass on the one batch.
        """
        raise NotImplementedError

    def extra_loss(self, ctx: ClientContext, batch: Any) -> Tensor:
        """Called on a client whenever the loss of a batch is computed: return a tensor of one element to add to it.

        It is part of ``ctx.loss``, so it also works with aggregators that compute the gradient; in LocalSCGDAM it
        belongs to the outer loss. The batch is on the device. ``ctx.model.module`` is the trained module with its
        current weights. Inside ``with ctx.model.at(vector):`` it computes with another vector [P], such as
        ``ctx.start``, the weights at which the round began, or weights of an earlier round in ``ctx.state``.
        """
        return torch.zeros(())

    def on_before_optimizer_step(self, ctx: ClientContext) -> None:
        """Called on a client at each step; may change ``ctx.grad`` [P], the gradient that the optimizer uses."""

    def on_after_optimizer_step(self, ctx: ClientContext, batches: Sequence[Any]) -> None:
        """Called on a client after each step; may change ``ctx.w`` [P], the new weights."""

    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        """Called on a client after its last step, in list order: return the change of its weights to send.

        Use it to clip, compress or normalise a client's update. The result is masked and weighted afterwards;
        diagnostics are computed from it.

        Args:
            ctx: The client; ``ctx.start`` [P] are the weights at which it began, ``ctx.num_steps`` its steps since.
            change: [P], the change of its weights as earlier aggregators of the list left it, zero where the client
                shares nothing. May be changed in place.

        Returns:
            The change to send, a tensor of the same shape and dtype.
        """
        return change

    def sent_bytes(self, ctx: ClientContext, change: Tensor) -> int:
        """Called on a client after :meth:`on_before_send`: return the bytes of the change in this algorithm's encoding.

        For algorithms that compress. It is what ``bytes/up`` counts for the weights where fedlit simulates the clients;
        sites send the values themselves, and there their true bytes are counted. By default the bytes of the values
        that the client shares; the last aggregator of a list that overrides it counts.

        Args:
            ctx: The client.
            change: [P], the change that is sent, zero where the client shares nothing.
        """
        return sum(part.stop - part.start for part in ctx.mask.sent(ctx.layout, len(change))) * change.element_size()

    def on_client_round_end(self, ctx: ClientContext) -> State:
        """Called on a client after its last step and :meth:`on_before_send`: return additive vectors for the server.

        Vectors of P (or S) elements are masked like the weights (or statistics). May change ``ctx.state``; a change of
        ``ctx.w`` would be lost.
        """
        return {}

    def reduce(self, layout: Layout, replies: Sequence[Payload]) -> Payload:
        """Called on the server after a round, for at most one aggregator of a list: combine the replies.

        For medians and the like, which need single replies. ``replies`` has one payload per client of the round, in
        cohort order; they may be changed in place. By default replies are added as they arrive. The result has vectors
        of the same names, sizes and dtypes, and the sums of the replies' weights, by which it is divided. Measuring
        rounds are always added up.
        """
        raise NotImplementedError

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        """Called on the server with the means of what clients sent, before ``server.w += server.delta``.

        ``mean`` has the names that :meth:`on_client_round_end` returned, without the weights. May change ``state``, and
        scale or replace ``server.delta`` [P], the mean change of the weights.
        """

    def on_stage_end(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server after a stage's last round; may set ``server.w`` [P], where the next stage starts."""

    def on_round_end(self, state: State, server: ServerState, rnd: Round) -> None:
        """Called on the server at the end of a round, when ``server.w`` and ``server.stats`` are final.

        May change ``state``, and set ``server.scored`` to the ``w`` [P] and ``stats`` [S] of another model to score.
        """

    def personalise(self, state: State, w: Tensor, stats: Tensor) -> None:
        """Called where a client's model is scored or exported: write its personal model into ``w`` and ``stats``.

        For an algorithm that trains a whole model per client besides the federation's. ``state`` is the client's;
        ``w`` [P] and ``stats`` [S] hold the federation's model with the parts that the client keeps.
        """

    def diagnostics(self, state: State, layout: Layout) -> dict[str, float]:
        """Called on the server after each round: return metrics to log, ``drift/...``."""
        return {}


class PrivateAggregator(Aggregator, ABC):
    """Base class of algorithms that make the gradient private, for differential privacy.

    Local steps then draw patients at random (:class:`fedlit.core.batches.PoissonStream`), no other aggregator of the
    list can read images, and a client reports neither losses nor what its module logs. ``broadcast`` sends ``noise``,
    the noise multiplier of a round, by which sites account for its steps.
    """

    governs = ("gradient",)
    private = True

    delta: float
    """Probability that epsilon does not hold."""

    epsilon: float | None
    """Budget of a client for the whole run, if it has one."""

    @abstractmethod
    def plan(self, state: State, planned: Mapping[str, tuple[float, int]], batch_size: int) -> None:
        """Called on the server before the first round of a new run; may change ``state``.

        A resumed run must have the same values in its state, except ``noise`` if it follows from ``epsilon``.

        Args:
            state: Its state at the server.
            planned: The probability with which a step of each client draws a patient, and its number of steps in all
                rounds.
            batch_size: Examples in a batch.
        """

    @abstractmethod
    def words(self, state: State) -> str:
        """Return its settings in words, such as the noise."""

    @abstractmethod
    def spent(self, state: State, taken: tuple[float, int], closer: bool = False) -> float:
        """Return the epsilon of a client after steps of one probability, with ``closer`` by a second, closer bound."""
