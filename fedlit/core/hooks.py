"""What the hooks of aggregators return: looked at where it is called for, and named where it cannot be used.

A mistake would otherwise come up rounds later, deep in torch. Each look costs nothing, or one pass over a vector a round.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, ClientState, Mask, Payload, State

BEFORE = ("scope", "server_state", "client_state")
"""Hooks that are called before anything is trained."""


def state_of(aggregator: object, hook: str, *given: Any) -> State:
    """Call a hook that returns named tensors.

    Raises:
        ConfigError, TrainingError: It returned something else.
    """
    return tensors(aggregator, hook, getattr(aggregator, hook)(*given))


def tensors(aggregator: object, hook: str, named: Any) -> State:
    """Return what a hook has returned, or has left in a state, once it is named tensors."""
    if not isinstance(named, dict):
        refuse(aggregator, hook, "a dictionary of tensors by name", named)
    for name, tensor in named.items():
        if not isinstance(name, str) or not torch.is_tensor(tensor):
            refuse(aggregator, hook, f"a tensor as {name!r}", tensor)
    return named


def sent_by(aggregator: object, ctx: Any) -> State:
    """What an aggregator sends beside the weights, which is weighted and added up."""
    sent = state_of(aggregator, "on_client_round_end", ctx)
    for name, vector in sent.items():
        if not vector.is_floating_point():
            refuse(aggregator, "on_client_round_end", f"{name!r} in floating point, as it is averaged", vector)
        if vector.numel() == ctx.layout.size and vector.ndim != 1:
            refuse(aggregator, "on_client_round_end", f"{name!r} as a vector [P]", vector)
    return sent


def mask_of(aggregator: Any, layout: Layout, client: Client) -> Mask:
    """Which groups a client shares, by one aggregator.

    Raises:
        ConfigError: It is no mask over the groups of the layout.
    """
    mask = aggregator.scope(layout, client)
    wanted = f"a Mask of bool tensors [{layout.num_groups}], one entry a group"
    if not isinstance(mask, Mask):
        refuse(aggregator, "scope", wanted, mask)
    for part in (mask.owned, mask.kept):
        if not torch.is_tensor(part) or part.dtype != torch.bool or tuple(part.shape) != (layout.num_groups,):
            refuse(aggregator, "scope", wanted, part)
    return mask


def client_mask(aggregators: Sequence[Any], layout: Layout, client: Client) -> Mask:
    """What a client shares: the product of the aggregators' masks."""
    mask = Mask.everything(layout)
    for aggregator in aggregators:
        mask = mask & mask_of(aggregator, layout, client)
    return mask


def initial_client_state(aggregators: Sequence[Any], layout: Layout) -> ClientState:
    """A client that has not trained yet."""
    empty = torch.zeros(0, dtype=layout.dtype)
    return ClientState(0, empty, empty.clone(), {}, [state_of(a, "client_state", layout) for a in aggregators])


def computed_loss(aggregator: Any, ctx: Any, batches: Sequence[Any]) -> Tensor:
    """Let an aggregator compute the gradient; the loss."""
    loss = aggregator.compute_gradient(ctx, batches)
    if not torch.is_tensor(loss) or loss.numel() != 1 or not loss.is_floating_point():
        refuse(aggregator, "compute_gradient", "the loss, a tensor of one number", loss)
    return loss


def extra_loss(aggregator: Any, ctx: Any, batch: Any) -> Tensor:
    """What an aggregator adds to the loss of a batch."""
    extra = aggregator.extra_loss(ctx, batch)
    if not torch.is_tensor(extra) or extra.numel() != 1 or not extra.is_floating_point():
        refuse(aggregator, "extra_loss", "a tensor of one number to add to the loss", extra)
    return extra


def replaced_change(aggregator: Any, ctx: Any, change: Tensor) -> Tensor:
    """What an aggregator makes of a client's change [P].

    Raises:
        TrainingError: It returned something else than a tensor of the same shape and dtype, or one that is not finite.
    """
    kind, finite = f"{tuple(change.shape)} {change.dtype}", torch.isfinite(change.sum())
    replaced = aggregator.on_before_send(ctx, change)
    if not torch.is_tensor(replaced) or (replaced.shape, replaced.dtype) != (change.shape, change.dtype):
        refuse(aggregator, "on_before_send", f"the change to send, a tensor {kind}", replaced)
    if finite and not torch.isfinite(replaced.sum()):
        raise TrainingError(f"{type(aggregator).__name__}.on_before_send: the change to send is finite before it alone")
    return replaced


def check_correction(aggregator: object, bias: Any, size: int, first: bool) -> None:
    """Refuse a correction that is no vector [P], and in the first round one that is not finite."""
    if not torch.is_tensor(bias) or tuple(bias.shape) != (size,):
        refuse(aggregator, "on_client_round_start", f"ctx.correction.bias as a vector ({size},)", bias)
    if first and not torch.isfinite(bias.sum()):
        raise TrainingError(f"{type(aggregator).__name__}.on_client_round_start: ctx.correction.bias is not finite")


def reduced(aggregator: Any, layout: Layout, replies: Sequence[Payload]) -> Payload:
    """Let an aggregator make one payload of a round's single ones."""
    forms = _forms(replies[0])
    payload = aggregator.reduce(layout, replies)
    if not isinstance(payload, Payload) or _forms(payload) != forms:
        refuse(aggregator, "reduce", f"a Payload of {forms}", payload)
    return payload


def _forms(payload: Payload) -> str:
    return ", ".join(f"{name} {tuple(v.shape)} {v.dtype}" for name, v in sorted(payload.vectors.items()))


def check_delta(aggregator: object, delta: Any, like: Tensor, state: Any) -> None:
    """Refuse what an aggregator made of the mean change of the weights, or of its own state."""
    if not torch.is_tensor(delta) or (delta.shape, delta.dtype) != (like.shape, like.dtype):
        wanted = f"server.delta as a tensor {tuple(like.shape)} {like.dtype}"
        refuse(aggregator, "on_aggregate_end", wanted, delta)
    if not torch.isfinite(delta.sum()):
        raise TrainingError(f"{type(aggregator).__name__}.on_aggregate_end: server.delta is not finite, and was before")
    tensors(aggregator, "on_aggregate_end", state)


def numbers_of(aggregator: Any, state: State, layout: Layout) -> Mapping[str, float]:
    """What an aggregator logs of a round."""
    numbers = aggregator.diagnostics(state, layout)
    if not isinstance(numbers, dict):
        refuse(aggregator, "diagnostics", "a dictionary of numbers by name", numbers)
    for name, number in numbers.items():
        if not isinstance(name, str) or not isinstance(number, Real):
            refuse(aggregator, "diagnostics", f"a number as {name!r}", number)
    return numbers


def refuse(aggregator: object, hook: str, expected: str, found: Any) -> NoReturn:
    """Name the aggregator and its hook, what was expected and what was found."""
    what = f"{tuple(found.shape)} {found.dtype}" if torch.is_tensor(found) else type(found).__name__
    error = ConfigError if hook in BEFORE else TrainingError
    raise error(f"{type(aggregator).__name__}.{hook}: expected {expected}; found {what}")
