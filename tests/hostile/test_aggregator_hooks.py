"""Hooks of aggregators with unusable results: reported before the first round, or in it."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import torch
from simulation import federated, simulate
from toys import ToyData, ToyNet, composed

from fedlit.aggregators import Aggregator
from fedlit.core.errors import ConfigError, FedlitError, TrainingError
from fedlit.core.messages import Mask, Payload
from fedlit.testing import check_aggregator


def wrong(hook: str, returned) -> Aggregator:
    """Make an aggregator with one hook that returns ``returned``, or its result for the hook's arguments."""

    def call(self, *given):
        return returned(*given) if callable(returned) else returned

    return type("Mine", (Aggregator,), {hook: call})()


def scaled(value: float):
    """Make a hook on the server that multiplies the mean change."""

    def hook(state, server, mean, rnd):
        server.delta *= value

    return hook


def score(value):
    """Make a hook on the server that sets the model to score."""

    def hook(state, server, rnd):
        server.scored = value

    return hook


def put(value):
    """Make a hook on the server that replaces the mean change."""

    def hook(state, server, mean, rnd):
        server.delta = value

    return hook


def left(value):
    """Make a hook on a client that writes into its state."""

    def hook(ctx):
        ctx.state["mine"] = value
        return {}

    return hook


def corrected(value):
    def hook(ctx):
        ctx.correction.bias = value

    return hook


def added(value: float):
    def hook(ctx):
        ctx.correction.bias += value

    return hook


def reduced(replies, **vectors):
    """Return the first reply with other vectors."""
    return replace(replies[0], vectors=replies[0].vectors | vectors)


def noted(state, server, mean, rnd):
    state["mine"] = 3


HOOKS = [
    ("scope", None, ConfigError, "NoneType"),
    ("scope", lambda layout, client: Mask(torch.ones(3), torch.ones(3)), ConfigError, "(3,) torch.float32"),
    ("server_state", [torch.zeros(2)], ConfigError, "list"),
    ("server_state", {"c": 0.0}, ConfigError, "'c'", "float"),
    ("client_state", {"c": np.zeros(2)}, ConfigError, "'c'", "ndarray"),
    ("broadcast", {1: torch.zeros(2)}, TrainingError, "a tensor as 1"),
    ("on_client_round_start", corrected(torch.zeros(3)), TrainingError, "ctx.correction.bias"),
    ("on_client_round_start", added(float("nan")), TrainingError, "ctx.correction.bias"),
    ("compute_gradient", None, TrainingError, "NoneType"),
    ("compute_gradient", torch.zeros(3), TrainingError, "(3,) torch.float32"),
    ("compute_gradient", torch.tensor(3), TrainingError, "() torch.int64"),
    ("on_before_send", lambda ctx, change: change[:3], TrainingError, "(3,)"),
    ("on_before_send", lambda ctx, change: change.long(), TrainingError, "torch.int64"),
    ("on_before_send", lambda ctx, change: change * float("nan"), TrainingError, "finite"),
    ("on_client_round_end", None, TrainingError, "NoneType"),
    ("on_client_round_end", {"n": 1.0}, TrainingError, "'n'", "float"),
    ("on_client_round_end", lambda ctx: {"n": torch.tensor([3])}, TrainingError, "'n'"),
    ("on_client_round_end", lambda ctx: {"n": ctx.w.clone()[None]}, TrainingError, "'n'"),
    ("on_client_round_end", lambda ctx: {"n": ctx.w * float("nan")}, TrainingError, "finite"),
    ("on_client_round_end", left(None), TrainingError, "'mine'", "NoneType"),
    ("reduce", None, TrainingError, "Payload"),
    ("reduce", lambda layout, replies: reduced(replies, w=torch.zeros(3)), TrainingError, "Payload"),
    ("reduce", lambda layout, replies: Payload({}, 1.0, replies[0].mask_weight), TrainingError, "Payload"),
    ("on_aggregate_end", put(torch.zeros(2)), TrainingError, "server.delta", "(2,)"),
    ("on_aggregate_end", scaled(float("nan")), TrainingError, "server.delta"),
    ("on_aggregate_end", noted, TrainingError, "'mine'", "int"),
    ("on_round_end", score({"w": torch.zeros(3)}), TrainingError, "server.scored"),
    ("on_round_end", score({"w": torch.zeros(3), "stats": torch.zeros(3)}), TrainingError, "server.scored['w']"),
    ("diagnostics", {"mine/x": torch.zeros(2)}, TrainingError, "'mine/x'", "(2,)"),
]


def run(aggregator: Aggregator) -> None:
    simulate(ToyNet(), ToyData(2, size=4), federated([aggregator], rounds=1, window=1))


@refusals.table(
    (f"{number}-{hook}", lambda given=(hook, returned): run(wrong(*given)), error, f"Mine.{hook}", *names)
    for number, (hook, returned, error, *names) in enumerate(HOOKS)
)
def test_a_hook_that_returns_what_nobody_can_use_is_named(provoke, kind, names):
    with refusals.refused(kind, *names):
        provoke()


@pytest.mark.parametrize("hook", ["client_state", "on_client_round_end", "diagnostics"])
def test_of_a_composition_the_part_is_named(hook):
    with refusals.refused(FedlitError, "Mine", hook):
        run(composed(wrong(hook, None)))


def test_the_check_for_authors_names_the_hook_too():
    with pytest.raises(AssertionError, match=r"Mine\.on_client_round_end: expected a dictionary of tensors"):
        check_aggregator(wrong("on_client_round_end", None), workers=1)


class Summed(Aggregator):
    """Adds to the gradient with a plus and an equals sign, which also assigns."""

    def compute_gradient(self, ctx, batches):
        loss = ctx.loss(batches[0], 0)
        ctx.grad += ctx.model.gradient(loss)
        return loss.detach()


class Assigned(Aggregator):
    """Replaces the gradient by another vector."""

    def compute_gradient(self, ctx, batches):
        loss = ctx.loss(batches[0], 0)
        ctx.grad = ctx.grad + ctx.model.gradient(loss)
        return loss.detach()


@pytest.mark.parametrize("aggregator", [Summed(), Assigned()])
def test_vectors_of_a_context_may_be_assigned_to(aggregator):
    torch.manual_seed(0)
    net = ToyNet(drop=0.0)
    plain, own = (simulate(net, ToyData(), federated([each], rounds=2)) for each in (Aggregator(), aggregator))
    torch.testing.assert_close(own.server.w, plain.server.w, rtol=0, atol=1e-12)


class Undeclared(Aggregator):
    """Keeps an undeclared value."""

    def on_client_round_end(self, ctx):
        ctx.state["c"] = ctx.w.clone()
        return {}


class Absent(Aggregator):
    """Reads an undeclared value."""

    def on_client_round_start(self, ctx):
        ctx.state["c"] += 1


@pytest.mark.parametrize(
    ("aggregator", "words"),
    [
        (Undeclared(), r"Undeclared:\n- client_state of site-0 after round 1: [^-]*found \['c'\][^-]*$"),
        (Absent(), r"Absent:\n- it raised KeyError: 'c'; [^-]*$"),
    ],
    ids=["kept", "read"],
)
def test_state_that_is_not_declared_is_one_mistake(aggregator, words):
    with pytest.raises(AssertionError, match=words):
        check_aggregator(aggregator, workers=1)
