"""The model that a process trains for one client after the other, and the order of a local step."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.aggregator import Aggregator, ClientContext, Correction
from fedlit.core.attributes import AttributeWatch
from fedlit.core.batches import BatchStream
from fedlit.core.errors import TrainingError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import Entry, FlatModel, Layout
from fedlit.core.graphs import RECORDERS, CapturedSteps, Steps, capture_obstacle, capture_refused
from fedlit.core.hooks import (
    check_correction,
    client_mask,
    computed_loss,
    extra_loss,
    replaced_change,
    sent_by,
    tensors,
)
from fedlit.core.memory_format import unchanged, with_channels_last
from fedlit.core.messages import Broadcast, Client, ClientState, Mask, Round, State
from fedlit.core.module import collect_logs, loss_of, step_of
from fedlit.core.objective import Objective
from fedlit.core.optimizer import FlatOptimizer
from fedlit.core.training_hooks import TrainingHooks

COMPILING = {"options": {"fallback_random": True}}
"""How the forward pass is compiled: dropout draws as it does without."""


@dataclass(frozen=True)
class LocalTraining:
    """Settings of the local loop.

    Args:
        optimizer_state: What happens to a client's optimizer state between its rounds: ``reset``, or ``keep``.
        gradient_clip: Largest norm of a local gradient; none by default.
        gradient_clamp: Largest absolute value of an element of a local gradient; none by default.
        measure_batches: Batches of each client that a measuring round looks at.
        channels_last: Whether convolutions compute in that memory format.
        captured: Number of examples in a batch whose step is recorded as a CUDA graph and replayed; 0 for none.
        compiled: Whether the module's forward pass is compiled.
    """

    optimizer_state: str = "reset"
    gradient_clip: float | None = None
    gradient_clamp: float | None = None
    measure_batches: int = 32
    channels_last: bool = False
    captured: int = 0
    compiled: bool = False

    @property
    def bounds(self) -> bool:
        """Whether gradients are bounded."""
        return self.gradient_clip is not None or self.gradient_clamp is not None


class LocalModel:
    """One model instance that clients take turns to train.

    Args:
        fabric: gives device and precision.
        module: anybody's LightningModule with ``training_step`` and ``configure_optimizers``.
        aggregators: the federation's algorithms.
        training: settings of the local loop.

    Attributes:
        learns: Whether a step has had a gradient other than zero yet, as of the last client's round.
        moves: Whether a client's weights have moved in a round yet.
        watch: Looks at what its steps keep in attributes.
        hooks: Calls the hooks of training that the module overrides.
        watched: Whether it has looked at a round.
    """

    def __init__(
        self,
        fabric: FederationFabric,
        module: LightningModule,
        aggregators: Sequence[Aggregator],
        training: LocalTraining,
    ) -> None:
        self.fabric, self.module, self.training = fabric, module, training
        self.aggregators = list(aggregators)
        for aggregator in self.aggregators:
            aggregator.configure_model(module)
        fabric.setup_module(module)
        collect_logs(module, fabric)
        self._training_step = step_of(module, "training_step")
        self._in_evaluation = [part for part in module.modules() if module.training and not part.training]
        self.train()
        self.flat = FlatModel(module, training.channels_last)
        self.watch, self.hooks = AttributeWatch(module), TrainingHooks(module)
        self._arranged = with_channels_last if training.channels_last else unchanged
        self.optimizer = FlatOptimizer(module, self.flat)
        held = weakref.ref(
            self.optimizer
        )  # a module that refers to its model stays in memory until garbage is looked for
        module.optimizers = lambda use_pl_optimizer=True: held().optimizer
        self._clipped = _joined(self.optimizer.segments)
        self.learns = self.moves = self.watched = False
        self._met = torch.zeros((), dtype=torch.bool, device=self.flat.w.device)
        self._masks: dict[str, Mask] = {}
        self.correction = Correction(self.layout, self.flat.w.device)
        self.batches_per_step = max([1, *(a.batches_per_step for a in self.aggregators)])
        objectives = [(f"{name}.", m) for name, m in module.named_modules() if isinstance(m, Objective)]
        self._projections = [objective.project for _, objective in objectives]
        own = tuple(prefix for prefix, _ in objectives)
        self._network = _segments([entry for entry in self.layout.parameters if not entry.name.startswith(own)])
        # Hooks that nobody implements cost nothing.
        self._starting = self._implementing("on_client_round_start")
        self._computing = self._implementing("compute_gradient")[:1]
        self._adding, self._contexts = self._implementing("extra_loss"), []
        self._before = self._implementing("on_before_optimizer_step")
        self._after = self._implementing("on_after_optimizer_step")
        self._sending = self._implementing("on_before_send")
        self._ending = self._implementing("on_client_round_end")
        self._corrects_last = bool(self._starting) and (training.bounds or self.hooks.of_gradients)
        self._looking = any(
            (self._starting, self._computing, self._adding, self._before, self._after, self._sending, self._ending)
        )
        self._replayed = self._captured() if training.captured else None
        if training.compiled:
            module.compile(**COMPILING)

    @property
    def _steps(self) -> Steps:
        """How steps are taken; by this model itself unless they are replayed."""
        return self._replayed or self

    @property
    def layout(self) -> Layout:
        """Where everything lies in the flat vectors."""
        return self.flat.layout

    def mask(self, client: Client) -> Mask:
        """What the client shares."""
        if client.name not in self._masks:
            self._masks[client.name] = client_mask(self.aggregators, self.layout, client)
        return self._masks[client.name]

    def adopt(self, mask: Mask, state: ClientState, down: Broadcast) -> None:
        """Become a client's model: the federation's weights where shared, its own where it has some."""
        self.flat.load(down.w, down.stats)
        self.flat.own.load(state.buffers)
        state.write(mask, self.layout, self.flat.w, self.flat.stats)

    def begin(
        self,
        client: Client,
        state: ClientState,
        down: Broadcast,
        rnd: Round,
        window: int,
        next_batch: Callable[[], Any],
    ) -> list[ClientContext]:
        """Start a client's round: its model, its optimizer, its correction; one context an aggregator."""
        mask, device = self.mask(client), self.flat.w.device
        self.adopt(mask, state, down)
        self.start = self._where_it_starts(mask, down)
        self._lr_factor = lr_factor = rnd.lr_factor * client.lr_factor
        self.optimizer.begin(state.optimizer, lr_factor)
        if not self.module.training:  # going through a deep network's layers takes as long as many a small step
            self.train()
        self.fabric.begin()
        if self._starting:
            self.correction.reset()
        shared = (self.flat, client, mask, rnd, window, self.correction, next_batch, self.apply, self.loss)
        rates = [rate * lr_factor for rate in self.optimizer.rates]
        contexts = [
            ClientContext(*shared, _to(sent, device), _to(kept, device, copy=True), self.start, rates=rates)
            for sent, kept in zip(down.aggregators, state.aggregators, strict=True)
        ]
        self._contexts = contexts if self._adding else []
        for i in self._starting:
            self.aggregators[i].on_client_round_start(contexts[i])
            check_correction(self.aggregators[i], self.correction.bias, self.layout.size, rnd.index == 0)
        if self._starting:
            self.start.copy_(self.flat.w)  # what they set is where the client begins, and no part of its change
            self.correction.close(mask)
        return contexts

    def step(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """One local step; returns the loss.

        The order: gradient <- correction; forward; backward; the dual slice changes sign, so that descent on it is ascent;
        clipping or clamping; ``on_before_optimizer_step``; optimizer; projection of the objective's variables;
        ``on_after_optimizer_step``. Where gradients are clipped or clamped, or hooks of the module look at them, the
        correction is added after that instead. The module's own hooks stand where Lightning's Trainer calls them.
        """
        if self.hooks.called:
            batches = [self.moved(batches[0]), *batches[1:]]
            self.hooks.start_batch(batches[0], number)
        loss = self._steps.compute_gradient(contexts, batches, number)
        for i in self._before:
            self.aggregators[i].on_before_optimizer_step(contexts[i])
        self._steps.update()
        for context in contexts:
            context.num_steps = number + 1
        for i in self._after:
            self.aggregators[i].on_after_optimizer_step(contexts[i], batches)
        if self.hooks.called:
            self.hooks.end_batch(batches[0], number)
            self.flat.gather_statistics()
        return loss

    def first_loss(self, batch: Any) -> Tensor:
        """The loss of a round's first step, with what its hooks do before and after; no step is taken."""
        batch = self.moved(batch)
        self.hooks.start_epoch()
        self.hooks.start_batch(batch, 0)
        loss = self.loss(batch, 0)
        self.hooks.end_batch(batch, 0)
        return loss

    def train(self) -> None:
        """Set the mode of all layers, but for those that the module itself has put into evaluation mode."""
        self.module.train()
        for part in self._in_evaluation:
            part.training = False

    def count(self, seen: int, stream: BatchStream) -> None:
        """Tell the module, for its ``global_step`` and ``current_epoch``, how many batches of a stream it has seen."""
        self.fabric.count(seen // self.batches_per_step, seen // stream.steps_per_epoch)

    def still(self) -> str:
        """Why the client's weights did not move in its round, or ""; a rate of 0 is what somebody asked for."""
        self.learns = self.learns or bool(self._met)
        self.moves = self.moves or (self.learns and not torch.equal(self.flat.w, self.start))
        if self.moves or not any(self.optimizer.rates):
            return ""
        return "the optimizer leaves them as they are" if self.learns else "every gradient is zero"

    def end(self, contexts: Sequence[ClientContext], down: Broadcast, into: Tensor | None = None) -> State:
        """What a client sends, each vector in memory of its own; ``w`` may be in that which is given, and is used again.

        ``w`` and ``stats`` are the changes over the round, the former as the aggregators replace it; ``<i>/<name>`` is what
        aggregator i sends beside.
        """
        if self.hooks.called:
            self.optimizer.check_rates(self._lr_factor)
        change = torch.sub(self.flat.w, self.start, out=None if self._sending else into)  # a hook may keep what it gets
        if self._sending:
            for segment in contexts[0].mask.unshared(self.layout):
                change[segment] = 0
        for i in self._sending:
            change = replaced_change(self.aggregators[i], contexts[i], change)
        vectors = {"w": change, "stats": _change(self.flat.stats, down.stats.to(self.flat.stats.device))}
        for i in self._ending:
            sent = sent_by(self.aggregators[i], contexts[i])
            vectors |= {f"{i}/{name}": vector for name, vector in sent.items()}
        for aggregator, context in zip(self.aggregators, contexts, strict=True):
            tensors(aggregator, "on_client_round_end", context.state)
        used = [self.flat.w, self.flat.grad, self.flat.stats, self.start]
        used += [self.correction.bias] if self._starting else []
        used += [tensor for c in contexts for state in (c.broadcast, c.state) for tensor in state.values()]
        return _apart(vectors, used)

    def state(self, client: Client, before: ClientState, drawn: int, contexts: Sequence[ClientContext]) -> ClientState:
        """What the client keeps after its round."""
        mask = self.mask(client)
        return ClientState(
            before.batches + drawn,
            mask.part(self.layout, self.flat.w).cpu(),
            self.flat.stats.cpu().clone() if mask.keeps_stats(self.layout) else before.stats,
            self.optimizer.state() if self.training.optimizer_state == "keep" else {},
            [_to(context.state, "cpu") for context in contexts],
            self.flat.own.state(),
        )

    def _where_it_starts(self, mask: Mask, down: Broadcast) -> Tensor:
        """[P], the weights that a client begins with: those that were sent, where that is all, and no hook looks at them."""
        own, like = mask.private(self.layout), (down.w.device, down.w.dtype)
        if self._looking or own or like != (self.flat.w.device, self.flat.w.dtype):
            self._start.copy_(self.flat.w)
            return self._start
        return down.w

    @cached_property
    def _start(self) -> Tensor:
        return torch.empty_like(self.flat.w)

    def gradient(self, batch: Any, step: int) -> Tensor:
        """Forward and backward on one batch; adds to the flat gradient and returns the loss."""
        loss = self.loss(batch, step)
        try:
            loss.backward()
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            name = type(self.module).__name__
            raise TrainingError(
                f"{name}: its training_step has called backward already, or returned a loss of an earlier step; a "
                "federation calls loss.backward() itself: return the loss of this batch"
            ) from error
        self.flat.gather_gradients()
        return loss.detach()

    def moved(self, batch: Any) -> Any:
        """Give a batch on the fabric's device, in its precision and in the memory format of the run."""
        return self._arranged(self.fabric.to_device(self.fabric.strategy.precision.convert_input(batch)))

    def apply(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """What a function makes of a batch, on the fabric's device, in its precision and in the memory format of the run."""
        batch = self.moved(batch)
        try:
            with self.fabric.autocast():
                return function(batch)
        except RuntimeError as error:
            if not self.training.channels_last or "view size is not compatible" not in str(error):
                raise
            raise TrainingError(
                f"federation.memory_format: {type(self.module).__name__} cannot compute on channels_last images "
                f"({str(error).splitlines()[0]}); set contiguous, or write reshape in place of view"
            ) from error

    def loss(self, batch: Any, step: int) -> Tensor:
        """What ``training_step`` makes of a batch, and what aggregators add to it, with its graph."""
        version = self.flat.grad._version
        output = self.apply(lambda moved: self._training_step(moved, step), batch)
        if self.flat.grad._version != version:  # it has called zero_grad or backward, which here comes after it
            self._clear_gradient()
        loss = loss_of(self.module, output)
        self.hooks.keep(output, loss)
        for i in self._adding:
            loss = loss + self.apply(partial(extra_loss, self.aggregators[i], self._contexts[i]), batch)
        return loss

    def compute_gradient(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Take a step until ``on_before_optimizer_step``: the gradient; returns the loss."""
        flat = self.flat
        self._clear_gradient()
        for i in self._computing:
            loss = computed_loss(self.aggregators[i], contexts[i], batches)
        if not self._computing:
            loss = self.gradient(batches[0], number)
            self.hooks.after_backward()
        flat.gather_statistics()
        if self.hooks.of_gradients:
            self.hooks.before_step(self.optimizer.optimizer)
            flat.gather_gradients(replaced=True)
        if not self.learns:  # read when the round is over: no step waits for the device
            self._met.logical_or_(flat.grad.count_nonzero() > 0)
        flat.grad[self.layout.slices["dual"]].neg_()
        if self.training.bounds:
            self._bound(flat.grad)
        if self._corrects_last:
            self.correction.add_to(flat.grad, flat.w)
        return loss

    def update(self) -> None:
        """Take the rest of a step: along the gradient."""
        self.optimizer.step()
        for project in self._projections:
            project()

    def _captured(self) -> CapturedSteps:
        """Record the steps.

        Raises:
            TrainingError: That cannot be done.
        """
        device, name = self.flat.w.device, type(self.module).__name__
        if reason := capture_obstacle(self.flat, self.optimizer, self.aggregators):
            raise TrainingError(capture_refused(name, reason))
        self.optimizer.fix_addresses()
        if self._starting:
            self.correction.fix_addresses()
        return CapturedSteps(
            recorder=RECORDERS[device.type](device),
            fabric=self.fabric,
            plain=self,
            moved=self.moved,
            ready=lambda: self.learns and self.watched,
            size=self.training.captured,
            hooked=bool(self._before),
            name=name,
        )

    def _bound(self, gradient: Tensor) -> None:
        """Clip the norm of the gradient that is optimized, or clamp each element of it that is no variable of the objective."""
        if self.training.gradient_clip is not None:
            counted = [gradient[segment] for segment in self._clipped]
            norm = counted[0].norm() if len(counted) == 1 else torch.stack([part.norm() for part in counted]).norm()
            gradient.mul_((self.training.gradient_clip / (norm + 1e-6)).clamp(max=1.0))
        else:
            for segment in self._network:
                gradient[segment].clamp_(-self.training.gradient_clamp, self.training.gradient_clamp)

    def _clear_gradient(self) -> None:
        """Begin a step's gradient: the correction where there is one that is not added at the end, or zero."""
        if self._starting and not self._corrects_last:
            self.correction.write(self.flat.grad, self.flat.w)
        else:
            self.flat.grad.zero_()

    def _implementing(self, hook: str) -> list[int]:
        return [i for i, aggregator in enumerate(self.aggregators) if aggregator.implements(hook)]


def configured(fabric: FederationFabric, module: LightningModule, aggregators: Sequence[Aggregator]) -> LightningModule:
    """The module as its federation trains it: as the aggregators change it, in the fabric's precision."""
    for aggregator in aggregators:
        aggregator.configure_model(module)
    return fabric.strategy.precision.convert_module(module)


def _apart(vectors: State, used: Sequence[Tensor]) -> State:
    """The vectors, as copies where they share memory with each other or with something that must not change."""
    memory, apart = {tensor.untyped_storage().data_ptr() for tensor in used}, {}
    for name, vector in vectors.items():
        place = vector.untyped_storage().data_ptr()
        apart[name] = vector.clone() if place in memory else vector
        memory.add(place)
    return apart


def _change(now: Tensor, before: Tensor) -> Tensor:
    """By how much statistics have changed; one that is infinite and stays so, such as of a causal mask, by nothing."""
    return (now - before).masked_fill_(now.isinf() & (now == before), 0.0)


def _segments(entries: Sequence[Entry]) -> list[slice]:
    """Where parameters lie in the weight vector; neighbours are one slice."""
    return _joined([slice(entry.offset, entry.offset + entry.size) for entry in entries])


def _joined(segments: Sequence[slice]) -> list[slice]:
    merged: list[slice] = []
    for segment in segments:
        start = merged.pop().start if merged and merged[-1].stop == segment.start else segment.start
        merged.append(slice(start, segment.stop))
    return merged


def _to(state: State, device: torch.device | str, copy: bool = False) -> State:
    return {name: tensor.to(device, copy=copy) for name, tensor in state.items()}
