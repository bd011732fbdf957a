"""The model that a process trains for one client after the other, and the order of a local step."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core import hooks
from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.batches import BatchStream
from fedlit.core.errors import TrainingError
from fedlit.core.fabric import FederationFabric
from fedlit.core.flat import FlatModel, Layout, joined
from fedlit.core.local_training import Correction, LocalTraining
from fedlit.core.messages import Broadcast, Client, ClientState, Mask, Round, State
from fedlit.core.module import TrainingHooks, collect_logs, loss_of, step_of
from fedlit.core.objective import Objective
from fedlit.core.optimizer import LocalOptimizer
from fedlit.core.system.devices import unchanged, with_channels_last

COMPILING = {"options": {"fallback_random": True}}
"""Options of ``torch.compile``: dropout draws the same numbers as without it."""


class LocalModel:
    """One model instance that clients take turns to train.

    Attributes:
        learns: Whether a step has had a nonzero gradient, as of the last client's round.
        moves: Whether a client's weights have changed in a round yet.
        hooks: Calls the training hooks that the module overrides.
    """

    def __init__(
        self, fabric: FederationFabric, module: LightningModule, aggregators: list[Aggregator], training: LocalTraining
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
        self._parts = list(module.modules())
        self._modes = [part.training for part in self._parts]
        self.flat = FlatModel(module, training.channels_last)
        self.hooks = TrainingHooks(module)
        self._arranged = with_channels_last if training.channels_last else unchanged
        self.optimizer = LocalOptimizer(module, self.flat.w.device)
        optimizer = weakref.ref(self.optimizer)  # a reference cycle would keep the module until the next collection
        module.optimizers = lambda use_pl_optimizer=True: optimizer().optimizer
        self.learns = self.moves = False
        self._met = torch.zeros((), dtype=torch.bool, device=self.flat.w.device)
        self._masks: dict[str, Mask] = {}
        self._clipped: list[slice] = []
        self.correction = Correction(self.layout, self.flat.w.device)
        self.batches_per_step = max([1, *(a.batches_per_step for a in self.aggregators)])
        objectives = [(f"{name}.", m) for name, m in module.named_modules() if isinstance(m, Objective)]
        self._projections = [objective.project for _, objective in objectives]
        prefixes = tuple(prefix for prefix, _ in objectives)
        network = [entry for entry in self.layout.parameters if not entry.name.startswith(prefixes)]
        self._network = _joined((entry.offset, entry.offset + entry.size) for entry in network)
        # Hooks that no aggregator implements cost nothing.
        self._starting = self._implementing("on_client_round_start")
        self._computing = self._implementing("compute_gradient")[:1]
        self._adding, self._contexts = self._implementing("extra_loss"), []
        self._before = self._implementing("on_before_optimizer_step")
        self._after = self._implementing("on_after_optimizer_step")
        self._sending = self._implementing("on_before_send")
        self._ending = self._implementing("on_client_round_end")
        self._corrects_last = bool(self._starting) and (training.bounds or self.hooks.of_gradients)
        client_side = (self._starting, self._computing, self._adding, self._before, self._after, self._sending)
        self._looking = any((*client_side, self._ending))
        if training.compiled:
            module.compile(**COMPILING)

    @property
    def layout(self) -> Layout:
        """Layout of the flat vectors."""
        return self.flat.layout

    def mask(self, client: Client) -> Mask:
        """Return the groups that the client shares."""
        if client.name not in self._masks:
            self._masks[client.name] = hooks.client_mask(self.aggregators, self.layout, client)
        return self._masks[client.name]

    def adopt(self, mask: Mask, state: ClientState, down: Broadcast) -> None:
        """Become a client's model: the federation's weights where shared, its own elsewhere."""
        self.flat.load(down.w, down.stats)
        self.flat.own.load(state.buffers)
        state.write(mask, self.layout, self.flat.w, self.flat.stats)

    def adopt_personal(self, client: Client, state: ClientState, down: Broadcast) -> None:
        """Become the model that a client uses: its own, if an aggregator trains one."""
        self.adopt(self.mask(client), state, down)
        hooks.personalise(self.aggregators, state, self.flat.w, self.flat.stats)

    def begin(
        self, client: Client, state: ClientState, down: Broadcast, rnd: Round, window: int, next_batch: Callable
    ) -> list[ClientContext]:
        """Start a client's round: its model, optimizer and correction; return one context per aggregator."""
        mask, device = self.mask(client), self.flat.w.device
        self.adopt(mask, state, down)
        self.start = self._start_of(mask, down)
        self.optimizer.begin(state.optimizer, rnd.lr_factor * client.lr_factor, *self.fabric.counts)
        if self.training.gradient_clip is not None:
            self._clipped = self._optimized()
        if [part.training for part in self._parts] != self._modes:  # setting them takes as long as many a small step
            self.train()
        self.fabric.begin()
        if self._starting:
            self.flat.use_gradients()
            self.correction.reset()
        shared, reading = (self.flat, client, mask, rnd, window, self.correction), (next_batch, self.apply, self.loss)
        private = any(aggregator.private for aggregator in self.aggregators)
        rnd = replace(rnd, lr_factor=rnd.lr_factor * self.optimizer.scheduled)
        contexts = [
            ClientContext(
                *shared, *([hooks.refuse_images(aggregator)] * 3 if private and not aggregator.private else reading),
                _to(sent, device), _to(own_state, device, copy=True), self.start, self.optimizer,
            )
            for aggregator, sent, own_state in zip(self.aggregators, down.aggregators, state.aggregators, strict=True)
        ]  # fmt: skip
        self._contexts = contexts if self._adding else []
        for i in self._starting:
            self.aggregators[i].on_client_round_start(contexts[i])
            hooks.check_correction(self.aggregators[i], self.correction.bias, self.layout.size, rnd.index == 0)
        if self._starting:
            self.start.copy_(self.flat.w)  # weights that they set are the client's start, not part of its change
            self.correction.close(mask)
        return contexts

    def step(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Take one local step and return the loss.

        The order: gradient <- correction; forward; backward; negation of the dual slice, so that descent on it is
        ascent; clipping or clamping; ``on_before_optimizer_step``; optimizer; projection of the objective's variables;
        ``on_after_optimizer_step``. If gradients are clipped or clamped, or hooks of the module read them, the
        correction is added after that instead. The module's own hooks are called where Lightning's Trainer calls them.
        """
        if self.hooks.called:
            batches = [self.moved(batches[0]), *batches[1:]]
            self.hooks.start_batch(batches[0], number)
        loss = self._compute_gradient(contexts, batches, number)
        for i in self._before:
            self.aggregators[i].on_before_optimizer_step(contexts[i])
        self._update()
        for context in contexts:
            context.num_steps = number + 1
        for i in self._after:
            self.aggregators[i].on_after_optimizer_step(contexts[i], batches)
        if self.hooks.called:
            self.hooks.end_batch(batches[0], number)
            self.flat.gather_statistics()
        return loss

    def train(self) -> None:
        """Set all layers to training mode, except those that the module itself has put into evaluation mode."""
        self.module.train()
        for part in self._in_evaluation:
            part.training = False

    def count(self, seen: int, stream: BatchStream) -> None:
        """Set the module's ``global_step`` and ``current_epoch`` from the number of batches that it has seen."""
        self.fabric.count(seen // self.batches_per_step, seen // stream.steps_per_epoch)

    def stalled(self) -> str:
        """Return why the client's weights did not change in its round, or ""; a rate of 0 is intended."""
        self.learns = self.learns or bool(self._met)
        self.moves = self.moves or (self.learns and not torch.equal(self.flat.w, self.start))
        if self.moves or not any(map(float, self.optimizer.plain)):
            return ""
        return "the optimizer leaves them as they are" if self.learns else "every gradient is zero"

    def end(self, contexts: Sequence[ClientContext], down: Broadcast, into: Tensor | None = None) -> State:
        """Return the vectors that a client sends, none of which share memory.

        ``w`` and ``stats`` are the changes over the round, the former as the aggregators replace it; ``<i>/<name>`` is
        a vector of aggregator i. ``w`` may lie in ``into``, which is reused.
        """
        change = torch.sub(self.flat.w, self.start, out=None if self._sending else into)  # hooks may keep a reference
        if self._sending:
            for segment in contexts[0].mask.unshared(self.layout):
                change[segment] = 0
        for i in self._sending:
            change = hooks.replaced_change(self.aggregators[i], contexts[i], change)
        stats, before = self.flat.stats, down.stats.to(self.flat.stats.device)
        unchanged_inf = stats.isinf() & (stats == before)  # as in a causal mask
        vectors = {"w": change, "stats": (stats - before).masked_fill_(unchanged_inf, 0.0)}
        for i in self._ending:
            sent = hooks.sent_by(self.aggregators[i], contexts[i])
            vectors |= {f"{i}/{name}": vector for name, vector in sent.items()}
        for aggregator, context in zip(self.aggregators, contexts, strict=True):
            hooks.tensors(aggregator, "on_client_round_end", context.state)
        self.optimizer.check_rates()
        used = [self.flat.w, self.flat.grad, self.flat.stats, self.start]
        used += [self.correction.bias] if self._starting else []
        used += [tensor for c in contexts for state in (c.broadcast, c.state) for tensor in state.values()]
        return _unaliased(vectors, used)

    def encoded(self, contexts: Sequence[ClientContext], change: Tensor) -> int:
        """Return the number of bytes that an aggregator's encoding of the change [P] saves."""
        if not (encoding := self._implementing("sent_bytes")):
            return 0
        aggregator, context = self.aggregators[encoding[-1]], contexts[encoding[-1]]
        return Aggregator.sent_bytes(aggregator, context, change) - hooks.encoded_bytes(aggregator, context, change)

    def state(self, client: Client, before: ClientState, drawn: int, contexts: Sequence[ClientContext]) -> ClientState:
        """Return the state that the client keeps after its round."""
        mask = self.mask(client)
        return ClientState(
            before.batches + drawn,
            mask.part(self.layout, self.flat.w).cpu(),
            self.flat.stats.cpu().clone() if mask.keeps_stats(self.layout) else before.stats,
            self.optimizer.state() if self.training.optimizer_state == "keep" else {},
            [_to(context.state, "cpu") for context in contexts],
            self.flat.own.state(),
        )

    def _start_of(self, mask: Mask, down: Broadcast) -> Tensor:
        """Return the weights [P] that a client begins with: those that were sent, if no hook reads them."""
        private, like = mask.private(self.layout), (down.w.device, down.w.dtype)
        if self._looking or private or like != (self.flat.w.device, self.flat.w.dtype):
            self._start.copy_(self.flat.w)
            return self._start
        return down.w

    @cached_property
    def _start(self) -> Tensor:
        return torch.empty_like(self.flat.w)

    def _backward(self, batch: Any, step: int) -> Tensor:
        """Run forward and backward on one batch; add to the flat gradient and return the loss."""
        loss = self.loss(batch, step)
        self.flat.drop_gradients()  # as Lightning does, between the two
        self._clear_gradient()
        try:
            self.fabric.backward(loss)
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            raise TrainingError(
                f"{type(self.module).__name__}: its training_step has called backward, or returned the loss of an "
                "earlier step; a federation calls loss.backward() itself: return the loss of this batch"
            ) from error
        self.flat.gather_gradients()
        return loss.detach()

    def moved(self, batch: Any) -> Any:
        """Return a batch on the fabric's device, in its precision and in the run's memory format."""
        return self._arranged(self.fabric.to_device(self.fabric.strategy.precision.convert_input(batch)))

    def apply(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Apply a function to a batch, on the fabric's device, in its precision and in the run's memory format."""
        batch = self.moved(batch)
        try:
            with self.fabric.autocast():
                return function(batch)
        except RuntimeError as error:
            if not self.training.channels_last or "view size is not compatible" not in str(error):
                raise
            raise TrainingError(
                f"federation.memory_format: {type(self.module).__name__} cannot compute on channels_last images "
                f"({str(error).splitlines()[0]}); set contiguous, or write reshape instead of view"
            ) from error

    def loss(self, batch: Any, step: int) -> Tensor:
        """Return the loss of a batch, with its graph: that of ``training_step`` and what aggregators add to it."""
        output = self.apply(lambda moved: self._training_step(moved, step), batch)
        loss = loss_of(self.module, output)
        self.hooks.keep(output, loss)
        for i in self._adding:
            loss = loss + self.apply(partial(hooks.extra_loss, self.aggregators[i], self._contexts[i]), batch)
        return loss

    def _compute_gradient(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """Take a step up to ``on_before_optimizer_step``: compute the gradient and return the loss."""
        flat = self.flat
        if self._computing:
            (i,) = self._computing
            flat.use_gradients()
            self._clear_gradient()
            loss = hooks.computed_loss(self.aggregators[i], contexts[i], batches)
            flat.gather_gradients()
            flat.use_gradients()
        else:
            loss = self._backward(batches[0], number)
            self.hooks.call("on_after_backward")
        flat.gather_statistics()
        if self.hooks.of_gradients:
            self.hooks.call("on_before_optimizer_step", self.optimizer.optimizer)
            flat.take_gradients()
        if not self.learns:  # read after the round, so that no step waits for the device
            self._met.logical_or_(flat.grad.count_nonzero() > 0)
        flat.grad[self.layout.slices["dual"]].neg_()
        if self.training.bounds:
            self.training.bound(flat.grad, self._clipped, self._network)
        if self._corrects_last:
            self.correction.add_to(flat.grad, flat.w)
        return loss

    def _update(self) -> None:
        """Take the rest of a step: update the weights along the gradient.

        A parameter that the loss does not use has no gradient, as in PyTorch, and the optimizer passes over it, unless
        an algorithm has added something to its gradient.
        """
        if self._starting or self._before:
            self.flat.use_gradients(nonzero=True)
        self.optimizer.optimizer.step()
        for project in self._projections:
            project()

    def _clear_gradient(self) -> None:
        """Begin a step's gradient with zero, or with the correction unless it is added at the end."""
        if self._starting and not self._corrects_last:
            self.correction.write(self.flat.grad, self.flat.w)
        else:
            self.flat.grad.zero_()

    def _optimized(self) -> list[slice]:
        held = {id(p) for group in self.optimizer.optimizer.param_groups for p in group["params"]}
        pairs = zip(self.layout.parameters, self.flat.parameters, strict=True)
        return _joined((entry.offset, entry.offset + entry.size) for entry, p in pairs if id(p) in held)

    def _implementing(self, hook: str) -> list[int]:
        return [i for i, aggregator in enumerate(self.aggregators) if aggregator.implements(hook)]


def configured(fabric: FederationFabric, module: LightningModule, aggregators: Sequence[Aggregator]) -> LightningModule:
    """Return the module as its federation trains it: changed by the aggregators, in the fabric's precision."""
    module.fabric = fabric
    for aggregator in aggregators:
        aggregator.configure_model(module)
    return fabric.strategy.precision.convert_module(module)


def _unaliased(vectors: State, used: Sequence[Tensor]) -> State:
    """Return the vectors; those that share memory with each other or with a used tensor are copied."""
    memory, separate = {tensor.untyped_storage().data_ptr() for tensor in used}, {}
    for name, vector in vectors.items():
        address = vector.untyped_storage().data_ptr()
        separate[name] = vector.clone() if address in memory else vector
        memory.add(address)
    return separate


def _joined(ranges: Iterable[tuple[int, int]]) -> list[slice]:
    return [slice(start, stop) for start, stop, _ in joined((*each, None) for each in ranges)]


def _to(state: State, device: torch.device | str, copy: bool = False) -> State:
    return {name: tensor.to(device, copy=copy) for name, tensor in state.items()}
