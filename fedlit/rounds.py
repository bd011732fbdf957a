"""The two functions that every engine calls: ``client_round`` and ``server_round``."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.aggregators.base import Aggregator, ClientContext, Drift, overriding
from fedlit.data.sampling import BatchStream
from fedlit.errors import TrainingError
from fedlit.fabric import FederationFabric
from fedlit.flat import FlatModel, Layout
from fedlit.foreign import collect_logs, step_of
from fedlit.messages import (
    Broadcast,
    Client,
    ClientReport,
    ClientState,
    Mask,
    Payload,
    Round,
    ServerState,
    State,
)
from fedlit.optimizer import FlatOptimizer
from fedlit.randomness import seed_process


@dataclass(frozen=True)
class LocalTraining:
    """Settings of the local loop.

    Args:
        optimizer_state: what happens to a client's optimizer state between its rounds: ``reset``, or ``keep``.
        gradient_clip: largest norm of a local gradient; none by default.
    """

    optimizer_state: str = "reset"
    gradient_clip: float | None = None


class LocalModel:
    """One model instance that clients take turns to train.

    Args:
        fabric: gives device and precision.
        module: anybody's LightningModule with ``training_step`` and ``configure_optimizers``.
        aggregators: the federation's algorithms.
        training: settings of the local loop.
    """

    def __init__(self, fabric: FederationFabric, module: LightningModule, aggregators: Sequence[Aggregator],
                 training: LocalTraining) -> None:  # fmt: skip
        self.fabric, self.module, self.training = fabric, module, training
        self.aggregators = list(aggregators)
        for aggregator in self.aggregators:
            aggregator.configure_model(module)
        fabric.setup_module(module)
        collect_logs(module, fabric)
        self._training_step = step_of(module, "training_step")
        self.flat = FlatModel(module)
        self.optimizer = FlatOptimizer(module, self.flat)
        self._masks: dict[str, Mask] = {}
        self.drift = Drift(self.layout, self.flat.w.device)
        self.batches_per_step = max([1, *(a.batches_per_step for a in self.aggregators)])
        self.hooks = {name: overriding(self.aggregators, name) for name in (
            "on_client_round_start", "compute_gradient", "on_before_optimizer_step", "on_after_optimizer_step",
            "on_client_round_end")}  # fmt: skip

    @property
    def layout(self) -> Layout:
        return self.flat.layout

    def mask(self, client: Client) -> Mask:
        if client.name not in self._masks:
            self._masks[client.name] = client_mask(self.aggregators, self.layout, client)
        return self._masks[client.name]

    def adopt(self, mask: Mask, state: ClientState, down: Broadcast) -> None:
        """Become a client's model: the federation's weights where shared, its own where it has some."""
        self.flat.load(down.w, down.stats)
        if state.trained:
            offset = 0
            for private in mask.private(self.layout):
                length = private.stop - private.start
                self.flat.w[private] = state.w[offset : offset + length].to(self.flat.w.device)
                offset += length
            if not mask.shares_stats(self.layout):
                self.flat.stats.copy_(state.stats)

    def gradient(self, batch: Any, step: int) -> Tensor:
        """Forward and backward on one batch; adds to the flat gradient and returns the loss."""
        batch = self.fabric.to_device(self.fabric.strategy.precision.convert_input(batch))
        with self.fabric.autocast():
            output = self._training_step(batch, step)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is None:
            raise TrainingError(f"{type(self.module).__name__}.training_step returned no loss; return one at every step")
        loss.backward()
        return loss.detach()


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


def client_round(local: LocalModel, stream: BatchStream, client: Client, state: ClientState, down: Broadcast,
                 rnd: Round) -> tuple[Payload, ClientState, ClientReport]:  # fmt: skip
    """One client's part of a round: ``window`` local steps from the federation's weights.

    ``state`` and ``down`` are left as they are; the engine commits the returned state only after the server has
    accepted the payload.

    Raises:
        TrainingError: a loss, or the update, is not finite.
    """
    began, flat, layout, hooks = time.perf_counter(), local.flat, local.layout, local.hooks
    device = flat.w.device
    seed_process(rnd.seed, "round", rnd.index, client.name)
    local.fabric.logged.clear()
    mask = local.mask(client)
    private = mask.private(layout)
    local.adopt(mask, state, down)
    local.optimizer.begin(state.optimizer, rnd.lr_factor)
    local.module.train()
    steps = rnd.window * (stream.steps_per_epoch if rnd.unit == "epochs" else 1)
    drawn = 0

    def next_batch() -> Any:
        nonlocal drawn
        drawn += 1
        return stream[state.batches + drawn - 1]

    drift = local.drift
    drift.reset()
    contexts = [
        ClientContext(flat, client, rnd, steps, drift, next_batch, _to(down.aggregators[i], device),
                      _to(state.aggregators[i], device, copy=True))
        for i in range(len(local.aggregators))
    ]  # fmt: skip
    start = flat.w.clone()
    for i in hooks["on_client_round_start"]:
        local.aggregators[i].on_client_round_start(contexts[i])
    drift.close(mask)
    drifting = bool(hooks["on_client_round_start"])
    dual = layout.slices["dual"]
    clip = local.training.gradient_clip
    if drifting and clip is None:
        drift.bias[dual].neg_()  # the gradient's dual slice changes sign below, drift included

    losses = []
    for step in range(steps):
        batches = [next_batch() for _ in range(local.batches_per_step)]
        if drifting and clip is None:
            drift.write(flat.grad, flat.w)
        else:
            flat.grad.zero_()
        if hooks["compute_gradient"]:
            i = hooks["compute_gradient"][0]
            losses.append(local.aggregators[i].compute_gradient(contexts[i], batches))
        else:
            losses.append(local.gradient(batches[0], step))
        flat.grad[dual].neg_()
        if clip is not None:
            flat.grad.mul_((clip / (flat.grad.norm() + 1e-6)).clamp(max=1.0))
            if drifting:
                drift.add_to(flat.grad, flat.w)
        for i in hooks["on_before_optimizer_step"]:
            local.aggregators[i].on_before_optimizer_step(contexts[i])
        local.optimizer.step()
        for context in contexts:
            context.num_steps = step + 1
        for i in hooks["on_after_optimizer_step"]:
            local.aggregators[i].on_after_optimizer_step(contexts[i], batches)

    loss = _mean_loss(losses, client, rnd)
    vectors = {"w": torch.sub(flat.w, start, out=start), "stats": flat.stats - down.stats.to(device)}
    for i in hooks["on_client_round_end"]:
        sent = local.aggregators[i].on_client_round_end(contexts[i])
        kept = (flat.w, flat.grad, flat.stats, *contexts[i].down.values(), *contexts[i].state.values())
        vectors |= {f"{i}/{name}": _own(vector, kept) for name, vector in sent.items()}
    payload = _pack(vectors, layout, mask, client, rnd)
    after = ClientState(
        state.batches + drawn,
        torch.cat([flat.w[p] for p in private]).cpu() if private else state.w,
        state.stats if mask.shares_stats(layout) else flat.stats.cpu().clone(),
        local.optimizer.state() if local.training.optimizer_state == "keep" else {},
        [_to(context.state, "cpu") for context in contexts],
    )
    report = ClientReport(client.name, steps, client.examples, loss, time.perf_counter() - began, payload.nbytes,
                          local.fabric.means())  # fmt: skip
    return payload, after, report


def server_round(aggregators: Sequence[Aggregator], server: ServerState, total: Payload, rnd: Round) -> None:
    """The server's part: turn the sum of payloads into means, let the aggregators act, move the weights.

    An element's mean is over the clients that own it; where nobody in the cohort does, nothing changes.

    Raises:
        TrainingError: the sum is not finite; nothing has been changed then.
    """
    for name, vector in total.vectors.items():
        if not torch.isfinite(vector.sum()):
            raise TrainingError(f"round {rnd.index}: the sum of the clients' {name!r} is not finite")
    means = _means(total, server)
    server.delta = means.pop("w")
    for i, aggregator in enumerate(aggregators):
        own = {k.partition("/")[2]: v for k, v in means.items() if k.startswith(f"{i}/")}
        aggregator.on_aggregate_end(server.aggregators[i], server, own, rnd)
    server.w += server.delta
    server.stats += means["stats"]
    server.delta = None


def _means(total: Payload, server: ServerState) -> State:
    layout = server.layout
    share = torch.where(total.mask_weight > 0, 1.0 / total.mask_weight, 0.0)
    for vector in total.vectors.values():
        if vector.numel() == layout.size:
            for a, b, factor in layout.spans(share):
                vector[a:b] *= factor
        elif vector.numel() == layout.stats_size:
            vector *= float(share[layout.stats_group])
        else:
            vector /= total.weight
    return dict(total.vectors)


def _pack(vectors: State, layout: Layout, mask: Mask, client: Client, rnd: Round) -> Payload:
    private = mask.private(layout)
    for name, vector in vectors.items():
        if vector.numel() == layout.size:
            for stretch in private:
                vector[stretch] = 0
        elif vector.numel() == layout.stats_size and not mask.shares_stats(layout):
            vector.zero_()
        if not torch.isfinite(vector.sum()):
            raise TrainingError(f"client {client.name!r}, round {rnd.index}: its {name!r} is not finite after the local "
                                "steps; lower the learning rate, or set federation.gradient_clip")  # fmt: skip
    weighted = {name: vector.mul_(client.weight).cpu() for name, vector in vectors.items()}
    return Payload(weighted, client.weight, client.weight * mask.owned.double())


def _own(vector: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """The vector itself, or a copy where it shares memory with something that must not change."""
    memory = vector.untyped_storage().data_ptr()
    return vector.clone() if any(t.untyped_storage().data_ptr() == memory for t in kept) else vector


def _mean_loss(losses: list[Tensor], client: Client, rnd: Round) -> float:
    values = torch.stack(losses).float().cpu()
    if not torch.isfinite(values).all():
        step = int((~torch.isfinite(values)).nonzero()[0])
        raise TrainingError(f"client {client.name!r}, round {rnd.index}, local step {step}: the loss is {values[step]}; "
                            "lower the learning rate, or set federation.gradient_clip")  # fmt: skip
    return float(values.mean())


def _to(state: State, device: torch.device | str, copy: bool = False) -> State:
    return {name: tensor.to(device, copy=copy) for name, tensor in state.items()}
