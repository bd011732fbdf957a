"""The model that a process trains for one client after the other, and the order of a local step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.aggregators.base import Aggregator, ClientContext, Drift, overriding
from fedlit.errors import TrainingError
from fedlit.fabric import FederationFabric
from fedlit.flat import FlatModel, Layout
from fedlit.foreign import collect_logs, step_of
from fedlit.messages import Broadcast, Client, ClientState, Mask, Round, State
from fedlit.objectives.base import Objective
from fedlit.optimizer import FlatOptimizer


@dataclass(frozen=True)
class LocalTraining:
    """Settings of the local loop.

    Args:
        optimizer_state: what happens to a client's optimizer state between its rounds: ``reset``, or ``keep``.
        gradient_clip: largest norm of a local gradient; none by default.
        measure_batches: batches of each client that a measuring round looks at.
    """

    optimizer_state: str = "reset"
    gradient_clip: float | None = None
    measure_batches: int = 32


class LocalModel:
    """One model instance that clients take turns to train.

    Args:
        fabric: gives device and precision.
        module: anybody's LightningModule with ``training_step`` and ``configure_optimizers``.
        aggregators: the federation's algorithms.
        training: settings of the local loop.
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
        module.train()
        self.flat = FlatModel(module)
        self.optimizer = FlatOptimizer(module, self.flat)
        self._masks: dict[str, Mask] = {}
        self.drift = Drift(self.layout, self.flat.w.device)
        self.batches_per_step = max([1, *(a.batches_per_step for a in self.aggregators)])
        self._projections = [m.project for m in module.modules() if isinstance(m, Objective)]
        # Hooks that nobody overrides cost nothing.
        self._starting = overriding(self.aggregators, "on_client_round_start")
        self._computing = overriding(self.aggregators, "compute_gradient")[:1]
        self._before = overriding(self.aggregators, "on_before_optimizer_step")
        self._after = overriding(self.aggregators, "on_after_optimizer_step")
        self._ending = overriding(self.aggregators, "on_client_round_end")

    @property
    def layout(self) -> Layout:
        return self.flat.layout

    def mask(self, client: Client) -> Mask:
        """What the client shares."""
        if client.name not in self._masks:
            self._masks[client.name] = client_mask(self.aggregators, self.layout, client)
        return self._masks[client.name]

    def adopt(self, mask: Mask, state: ClientState, down: Broadcast) -> None:
        """Become a client's model: the federation's weights where shared, its own where it has some."""
        self.flat.load(down.w, down.stats)
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
        """Start a client's round: its model, its optimizer, its drift; one context an aggregator."""
        mask, device = self.mask(client), self.flat.w.device
        self.adopt(mask, state, down)
        self.optimizer.begin(state.optimizer, rnd.lr_factor)
        if not self.module.training:  # going through a deep network's layers takes as long as many a small step
            self.module.train()
        self.fabric.logged.clear()
        self.drift.reset()
        contexts = [
            ClientContext(
                self.flat,
                client,
                mask,
                rnd,
                window,
                self.drift,
                next_batch,
                self.apply,
                self.loss,
                _to(down.aggregators[i], device),
                _to(state.aggregators[i], device, copy=True),
            )
            for i in range(len(self.aggregators))
        ]
        for i in self._starting:
            self.aggregators[i].on_client_round_start(contexts[i])
        self.drift.close(mask)
        return contexts

    def step(self, contexts: Sequence[ClientContext], batches: Sequence[Any], number: int) -> Tensor:
        """One local step; returns the loss.

        The order: gradient <- drift; forward; backward; the dual slice changes sign, so that descent on it is ascent;
        clipping (the drift is added after it instead); ``on_before_optimizer_step``; optimizer; projection of the
        objective's variables; ``on_after_optimizer_step``.
        """
        flat, drift, clip, dual = self.flat, self.drift, self.training.gradient_clip, self.layout.slices["dual"]
        if self._starting and clip is None:
            drift.write(flat.grad, flat.w)
        else:
            flat.grad.zero_()
        for i in self._computing:
            loss = self.aggregators[i].compute_gradient(contexts[i], batches)
        if not self._computing:
            loss = self.gradient(batches[0], number)
        flat.grad[dual].neg_()
        if clip is not None:
            flat.grad.mul_((clip / (flat.grad.norm() + 1e-6)).clamp(max=1.0))
            if self._starting:
                drift.add_to(flat.grad, flat.w)
        for i in self._before:
            self.aggregators[i].on_before_optimizer_step(contexts[i])
        self.optimizer.step()
        for project in self._projections:
            project()
        for context in contexts:
            context.num_steps = number + 1
        for i in self._after:
            self.aggregators[i].on_after_optimizer_step(contexts[i], batches)
        return loss

    def end(self, contexts: Sequence[ClientContext]) -> State:
        """What the aggregators send, named ``<i>/<name>``."""
        vectors = {}
        for i in self._ending:
            context = contexts[i]
            sent = self.aggregators[i].on_client_round_end(context)
            kept = (self.flat.w, self.flat.grad, self.flat.stats, *context.down.values(), *context.state.values())
            vectors |= {f"{i}/{name}": _own(vector, kept) for name, vector in sent.items()}
        return vectors

    def state(self, client: Client, before: ClientState, drawn: int, contexts: Sequence[ClientContext]) -> ClientState:
        """What the client keeps after its round."""
        mask = self.mask(client)
        return ClientState(
            before.batches + drawn,
            mask.part(self.layout, self.flat.w).cpu(),
            self.flat.stats.cpu().clone() if mask.keeps_stats(self.layout) else before.stats,
            self.optimizer.state() if self.training.optimizer_state == "keep" else {},
            [_to(context.state, "cpu") for context in contexts],
        )

    def gradient(self, batch: Any, step: int) -> Tensor:
        """Forward and backward on one batch; adds to the flat gradient and returns the loss."""
        loss = self.loss(batch, step)
        loss.backward()
        return loss.detach()

    def apply(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """What a function makes of a batch, on the fabric's device and in its precision."""
        batch = self.fabric.to_device(self.fabric.strategy.precision.convert_input(batch))
        with self.fabric.autocast():
            return function(batch)

    def loss(self, batch: Any, step: int) -> Tensor:
        """What ``training_step`` makes of a batch, with its graph."""
        output = self.apply(lambda moved: self._training_step(moved, step), batch)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is None:
            raise TrainingError(
                f"{type(self.module).__name__}.training_step returned no loss; return one at every step"
            )
        return loss


def configured(fabric: FederationFabric, module: LightningModule, aggregators: Sequence[Aggregator]) -> LightningModule:
    """The module as its federation trains it: as the aggregators change it, in the fabric's precision."""
    for aggregator in aggregators:
        aggregator.configure_model(module)
    return fabric.strategy.precision.convert_module(module)


def client_mask(aggregators: Sequence[Aggregator], layout: Layout, client: Client) -> Mask:
    """What a client shares: the product of the aggregators' masks."""
    mask = Mask.everything(layout)
    for aggregator in aggregators:
        mask = mask & aggregator.scope(layout, client)
    return mask


def initial_client_state(aggregators: Sequence[Aggregator], layout: Layout) -> ClientState:
    """A client that has not trained yet."""
    empty = torch.zeros(0, dtype=layout.dtype)
    return ClientState(0, empty, empty.clone(), {}, [a.client_state(layout) for a in aggregators])


def _own(vector: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """The vector itself, or a copy where it shares memory with something that must not change."""
    memory = vector.untyped_storage().data_ptr()
    return vector.clone() if any(t.untyped_storage().data_ptr() == memory for t in kept) else vector


def _to(state: State, device: torch.device | str, copy: bool = False) -> State:
    return {name: tensor.to(device, copy=copy) for name, tensor in state.items()}
