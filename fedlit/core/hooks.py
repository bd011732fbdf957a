"""Checks of what the hooks of aggregators return.

A mistake would otherwise surface rounds later, deep in torch. Each check costs nothing, or one pass over a vector per
round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, ClientState, Mask, Payload, ServerState, State

if TYPE_CHECKING:
    import pandas as pd

BEFORE = ("scope", "server_state", "client_state")
"""Hooks that are called before anything is trained."""


def refuse_misspelt(key: str, own: object, base: type) -> None:
    """Refuse an aggregator or a callback with a method that is named like a hook, but is none and never called.

    Raises:
        ConfigError: Names the method, and the hook that it resembles.
    """
    hooks = [name for name in dir(base) if name.startswith("on_")]
    for name in dir(type(own)):
        if name.startswith("on_") and name not in hooks:
            meant = f"did you mean {near[0]}?" if (near := get_close_matches(name, hooks, 1)) else "rename it"
            raise ConfigError(
                f"{key}: {type(own).__name__}.{name} is no hook of {base.__name__}, never called; {meant}"
            )


def state_of(aggregator: object, hook: str, *arguments: Any) -> State:
    """Call a hook that returns named tensors, and refuse anything else."""
    return tensors(aggregator, hook, getattr(aggregator, hook)(*arguments))


def tensors(aggregator: object, hook: str, named: Any) -> State:
    """Check and return the named tensors that a hook has returned, or has left in a state."""
    if not isinstance(named, dict):
        refuse(aggregator, hook, "a dictionary of tensors by name", named)
    for name, tensor in named.items():
        if not isinstance(name, str) or not torch.is_tensor(tensor):
            refuse(aggregator, hook, f"a tensor as {name!r}", tensor)
    return named


def sent_by(aggregator: object, ctx: Any) -> State:
    """Return the vectors that an aggregator sends besides the weights; they are weighted and added up."""
    sent = state_of(aggregator, "on_client_round_end", ctx)
    for name, vector in sent.items():
        if not vector.is_floating_point():
            refuse(aggregator, "on_client_round_end", f"{name!r} in floating point, as it is averaged", vector)
        if vector.numel() == ctx.layout.size and vector.ndim != 1:
            refuse(aggregator, "on_client_round_end", f"{name!r} as a vector [P]", vector)
    return sent


def mask_of(aggregator: Any, layout: Layout, client: Client) -> Mask:
    """Return the groups that a client shares according to one aggregator; refuse anything but a mask over groups."""
    mask = aggregator.scope(layout, client)
    wanted = f"a Mask of bool tensors [{layout.num_groups}], one entry per group"
    if not isinstance(mask, Mask):
        refuse(aggregator, "scope", wanted, mask)
    for part in (mask.owned, mask.kept):
        if not torch.is_tensor(part) or part.dtype != torch.bool or tuple(part.shape) != (layout.num_groups,):
            refuse(aggregator, "scope", wanted, part)
    return mask


def client_mask(aggregators: Sequence[Any], layout: Layout, client: Client) -> Mask:
    """Return the product of the aggregators' masks for a client."""
    mask = Mask.everything(layout)
    for aggregator in aggregators:
        mask = mask & mask_of(aggregator, layout, client)
    return mask


def initial_client_state(aggregators: Sequence[Any], layout: Layout) -> ClientState:
    """Return the state of a client that has not trained yet."""
    empty = torch.zeros(0, dtype=layout.dtype)
    return ClientState(0, empty, empty.clone(), {}, [state_of(a, "client_state", layout) for a in aggregators])


def personalise(aggregators: Sequence[Any], state: ClientState, w: Tensor, stats: Tensor) -> None:
    """Write a client's personal model into weights [P] and statistics [S], if an aggregator trains one."""
    for aggregator, client_state in zip(aggregators, state.aggregators, strict=True):
        aggregator.personalise(client_state, w, stats)


def computed_loss(aggregator: Any, ctx: Any, batches: Sequence[Any]) -> Tensor:
    """Let an aggregator compute the gradient; return the loss."""
    loss = aggregator.compute_gradient(ctx, batches)
    return _scalar(aggregator, "compute_gradient", "the loss, a tensor with one element", loss)


def refuse_images(aggregator: object) -> Callable[..., NoReturn]:
    """Return what an aggregator gets in place of a function on images, where another one makes steps private."""

    def refused(*_: object, **__: object) -> NoReturn:
        name = type(aggregator).__name__
        raise ConfigError(f"{name} reads its client's images, which only an algorithm with privacy may; leave one out")

    return refused


def extra_loss(aggregator: Any, ctx: Any, batch: Any) -> Tensor:
    """Return what an aggregator adds to the loss of a batch."""
    extra = aggregator.extra_loss(ctx, batch)
    extra = _scalar(aggregator, "extra_loss", "a tensor with one element to add to the loss", extra)
    if torch.is_grad_enabled() and not extra.requires_grad and extra.item():
        raise TrainingError(
            f"{type(aggregator).__name__}.extra_loss: expected a term with a gradient, found one without; compute it "
            "from ctx.model.module, whose parameters have one (ctx.w has none)"
        )
    return extra


def _scalar(aggregator: object, hook: str, expected: str, value: Any) -> Tensor:
    if not torch.is_tensor(value) or value.numel() != 1 or not value.is_floating_point():
        refuse(aggregator, hook, expected, value)
    return value


def replaced_change(aggregator: Any, ctx: Any, change: Tensor) -> Tensor:
    """Return a client's change [P] as an aggregator replaces it; refuse another shape or dtype, NaN and infinity."""
    kind, finite = f"{tuple(change.shape)} {change.dtype}", torch.isfinite(change.sum())
    replaced = aggregator.on_before_send(ctx, change)
    if not torch.is_tensor(replaced) or (replaced.shape, replaced.dtype) != (change.shape, change.dtype):
        refuse(aggregator, "on_before_send", f"the change to send, a tensor {kind}", replaced)
    if finite and not torch.isfinite(replaced.sum()):
        what = f"{type(aggregator).__name__}.on_before_send: expected a finite change"
        raise TrainingError(f"{what}, found NaN or inf (its input was finite)")
    return replaced


def encoded_bytes(aggregator: Any, ctx: Any, change: Tensor) -> int:
    """Return the number of bytes in which an aggregator encodes a client's change [P]."""
    number = aggregator.sent_bytes(ctx, change)
    if not isinstance(number, int) or number < 0:
        refuse(aggregator, "sent_bytes", "a number of bytes, at least 0", number)
    return number


def client_weights(
    aggregators: Sequence[Any], clients: Mapping[str, Client], counts: "pd.DataFrame"
) -> dict[str, Client]:
    """Return the clients with the weights that the aggregators give them, which sum to 1.

    Args:
        aggregators: The list of aggregators.
        clients: The clients by name.
        counts: The rows of :meth:`fedlit.data.FederatedDataModule.counts`.
    """
    weighted, rows = dict(clients), counts[counts["split"] == "train"]
    sides = {n: rows.loc[rows["client"] == n, ["positives", "negatives"]].to_numpy(dtype=float).T for n in clients}
    for aggregator in (each for each in aggregators if each.implements("client_weight")):
        weights = {n: aggregator.client_weight(c, torch.from_numpy(sides[n].copy())) for n, c in weighted.items()}
        for name, weight in weights.items():
            if not isinstance(weight, Real | Tensor) or not 0 < float(weight) < math.inf:
                hook = f"{type(aggregator).__name__}.client_weight, client {name!r}"
                raise ConfigError(f"{hook}: expected a finite number above 0, found {weight}")
        total = sum(map(float, weights.values()))
        weighted = {name: replace(client, weight=float(weights[name]) / total) for name, client in weighted.items()}
    return weighted


def check_correction(aggregator: object, bias: Any, size: int, first: bool) -> None:
    """Refuse a correction that is not a vector [P], and in the first round one that is not finite."""
    if not torch.is_tensor(bias) or tuple(bias.shape) != (size,):
        refuse(aggregator, "on_client_round_start", f"ctx.correction.bias as a vector ({size},)", bias)
    if first and not torch.isfinite(bias.sum()):
        where = f"{type(aggregator).__name__}.on_client_round_start"
        raise TrainingError(f"{where}: ctx.correction.bias is not finite")


def reduced(aggregator: Any, layout: Layout, replies: Sequence[Payload]) -> Payload:
    """Let an aggregator combine a round's replies into one payload."""
    wanted = _vectors_of(replies[0])
    payload = aggregator.reduce(layout, replies)
    if not isinstance(payload, Payload) or _vectors_of(payload) != wanted:
        refuse(aggregator, "reduce", f"a Payload of {wanted}", payload)
    return payload


def _vectors_of(payload: Payload) -> str:
    return ", ".join(f"{name} {tuple(v.shape)} {v.dtype}" for name, v in sorted(payload.vectors.items()))


def check_delta(aggregator: object, delta: Any, like: Tensor, state: Any) -> None:
    """Refuse an unusable mean change of the weights, or state, that an aggregator has left."""
    if not torch.is_tensor(delta) or (delta.shape, delta.dtype) != (like.shape, like.dtype):
        refuse(aggregator, "on_aggregate_end", f"server.delta as a tensor {tuple(like.shape)} {like.dtype}", delta)
    if not torch.isfinite(delta.sum()):
        what = f"{type(aggregator).__name__}.on_aggregate_end: expected a finite server.delta"
        raise TrainingError(f"{what}, found NaN or inf (it was finite before)")
    tensors(aggregator, "on_aggregate_end", state)


def check_scored(aggregator: object, server: ServerState) -> None:
    """Refuse a model to score that does not have the form of the server's."""
    like = {"w": server.w, "stats": server.stats}
    scored = tensors(aggregator, "on_round_end", server.scored)
    if scored and scored.keys() != like.keys():
        refuse(aggregator, "on_round_end", "server.scored with 'w' and 'stats'", sorted(scored))
    for name, tensor in scored.items():
        if (tensor.shape, tensor.dtype) != (like[name].shape, like[name].dtype):
            kind = f"{tuple(like[name].shape)} {like[name].dtype}"
            refuse(aggregator, "on_round_end", f"server.scored[{name!r}] as a tensor {kind}", tensor)


def numbers_of(aggregator: Any, state: State, layout: Layout) -> Mapping[str, float]:
    """Return the metrics that an aggregator logs after a round."""
    numbers = aggregator.diagnostics(state, layout)
    if not isinstance(numbers, dict):
        refuse(aggregator, "diagnostics", "a dictionary of numbers by name", numbers)
    for name, number in numbers.items():
        if not isinstance(name, str) or not isinstance(number, Real):
            refuse(aggregator, "diagnostics", f"a number as {name!r}", number)
    return numbers


def refuse(aggregator: object, hook: str, expected: str, found: Any) -> NoReturn:
    """Raise an error that names the aggregator and its hook, what was expected and what was found."""
    what = f"{tuple(found.shape)} {found.dtype}" if torch.is_tensor(found) else type(found).__name__
    error = ConfigError if hook in BEFORE else TrainingError
    raise error(f"{type(aggregator).__name__}.{hook}: expected {expected}; found {what}")
