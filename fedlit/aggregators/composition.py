"""Algorithms that are a list of others."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any, Literal

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.errors import ConfigError
from fedlit.core.flat import Layout
from fedlit.core.governing import governed, governed_twice
from fedlit.core.hooks import mask_of, numbers_of, replaced_change, state_of
from fedlit.core.messages import Client, Mask, Payload, Round, ServerState, State


def _in_order(hook: str) -> Callable[..., None]:

    def call(self: "Composition", *arguments: Any) -> None:
        for part in self.parts:
            getattr(part, hook)(*arguments)

    return call


def _merged(hook: str) -> Callable[..., State]:

    def call(self: "Composition", *arguments: Any) -> State:
        merged: State = {}
        for part in self.parts:
            state = state_of(part, hook, *arguments)
            if twice := merged.keys() & state.keys():
                raise ConfigError(f"{type(self).__name__}: two parts use the name {min(twice)!r}; rename one")
            merged |= state
        return merged

    return call


class Composition(Aggregator, ABC):
    """An algorithm that is a fixed list of others, its parts.

    The constructor of a subclass takes the hyper-parameters and makes the parts. Every hook is called on the parts in
    order. They share their state and message dictionaries, in which each part has its own names. To a federation, and
    in a checkpoint, a composition is one aggregator.

    Args:
        parts: Aggregators, of which at most one computes the gradient, and at most one reduces the replies.

    Raises:
        ConfigError: Two parts compute the gradient, reduce the replies or govern the same thing, or a part states
            client weights and the composition does not state the same.
    """

    @abstractmethod
    def __init__(self, *parts: Aggregator) -> None:
        self.parts = parts
        self.batches_per_step = max(part.batches_per_step for part in parts)
        self.optimizer_state = next((part.optimizer_state for part in parts if part.optimizer_state), None)
        name = type(self).__name__
        for part in parts:
            if part.weights not in (None, self.weights):
                raise ConfigError(
                    f"{name}: its part {type(part).__name__} has weights = {part.weights!r}; set them in {name} too"
                )
            if part.private:
                raise ConfigError(
                    f"{name}: {type(part).__name__} is private; put it into the list of aggregators itself"
                )
        if twice := governed_twice(parts):
            raise ConfigError(f"{name}: {twice}")
        self.governs = tuple(dict.fromkeys(thing for each in (self, *parts) for thing in governed(each)))

    def implements(self, hook: str) -> bool:
        """Return whether the composition or one of its parts overrides this hook."""
        return getattr(type(self), hook) is not getattr(Composition, hook) or bool(self._having(hook))

    check_schedule, check_cohort = _in_order("check_schedule"), _in_order("check_cohort")
    configure_model = _in_order("configure_model")
    server_state, client_state, broadcast = _merged("server_state"), _merged("client_state"), _merged("broadcast")
    on_measure_end, on_round_start = _in_order("on_measure_end"), _in_order("on_round_start")
    on_client_round_start, on_client_round_end = _in_order("on_client_round_start"), _merged("on_client_round_end")
    on_before_optimizer_step = _in_order("on_before_optimizer_step")
    on_after_optimizer_step = _in_order("on_after_optimizer_step")
    on_aggregate_end, on_stage_end = _in_order("on_aggregate_end"), _in_order("on_stage_end")
    on_round_end = _in_order("on_round_end")
    personalise = _in_order("personalise")

    def client_weight(self, client: Client, counts: Tensor) -> float:
        """Let the parts change the weight, one after the other."""
        for part in self._having("client_weight"):
            client = replace(client, weight=part.client_weight(client, counts))
        return client.weight

    def sent_bytes(self, ctx: ClientContext, change: Tensor) -> int:
        """Ask the last part that encodes the change."""
        encoding = self._having("sent_bytes")
        return encoding[-1].sent_bytes(ctx, change) if encoding else super().sent_bytes(ctx, change)

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Multiply the parts' masks."""
        return reduce(and_, (mask_of(part, layout, client) for part in self.parts))

    def measures(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Return whether a part asks for a measuring round."""
        return any(part.measures(rnd, when) for part in self.parts)

    def measures_moments(self, rnd: Round, when: Literal["before", "after"]) -> bool:
        """Return whether a part that asks for a measuring round needs BatchNorm's statistics."""
        return any(part.measures(rnd, when) and part.measures_moments(rnd, when) for part in self.parts)

    def on_clients_change(self, state: State, server: ServerState) -> bool:
        """Ask all parts."""
        return any([part.on_clients_change(state, server) for part in self.parts])

    def compute_gradient(self, ctx: ClientContext, batches: Sequence[Any]) -> Tensor:
        """Call the part that computes the gradient."""
        (part,) = self._having("compute_gradient")
        return part.compute_gradient(ctx, batches)

    def extra_loss(self, ctx: ClientContext, batch: Any) -> Tensor:
        """Add up the parts' extra losses."""
        return sum((part.extra_loss(ctx, batch) for part in self._having("extra_loss")), torch.zeros(()))

    def reduce(self, layout: Layout, replies: Sequence[Payload]) -> Payload:
        """Call the part that reduces the replies."""
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
