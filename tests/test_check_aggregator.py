"""Every guard of ``check_aggregator`` has an aggregator that trips it."""

import threading

import pytest
import torch

from fedlit.aggregators import Aggregator, FedAvg, FedBN, FedProx, Scaffold
from fedlit.testing import check_aggregator


@pytest.mark.parametrize("aggregator", [FedAvg(), FedProx(0.5), FedBN(), Scaffold(0.7)], ids=lambda a: type(a).__name__)
def test_what_ships_passes(aggregator):
    check_aggregator(aggregator, workers=1)


def test_what_ships_passes_over_worker_processes():
    check_aggregator(Scaffold())


class StateOnSelf(Aggregator):
    def on_aggregate_end(self, state, server, mean, rnd):
        self.momentum = 0.9 * getattr(self, "momentum", 0) + server.delta
        server.delta = self.momentum


class NewName(Aggregator):
    def on_client_round_end(self, ctx):
        ctx.state["late"] = ctx.w.clone()
        return {}


class OtherShape(Aggregator):
    def server_state(self, layout, w):
        return {"m": torch.zeros(1)}

    def on_aggregate_end(self, state, server, mean, rnd):
        state["m"] = server.delta


class ChangesBroadcast(Aggregator):
    def server_state(self, layout, w):
        return {"m": torch.zeros_like(w)}

    def broadcast(self, state, rnd):
        return state

    def on_client_round_start(self, ctx):
        ctx.down["m"] += 1


class ChangingMessage(Aggregator):
    def on_client_round_end(self, ctx):
        return {f"extra{ctx.rnd.index}": ctx.w.clone()}


class SetsDrift(Aggregator):
    def on_client_round_start(self, ctx):
        ctx.drift.bias.copy_(0.1 * ctx.w)


class NotFinite(Aggregator):
    def on_client_round_end(self, ctx):
        return {"x": ctx.w / 0}


class Unpicklable(Aggregator):
    def __init__(self):
        self.lock = threading.Lock()


class CountsInTheProcess(Aggregator):
    calls = 0

    def on_client_round_start(self, ctx):
        type(self).calls += 1
        ctx.drift.bias += 1e-3 * type(self).calls


@pytest.mark.parametrize(
    ("aggregator", "words"),
    [
        (StateOnSelf, "hyper-parameters only"),
        (StateOnSelf, "resumed it gives other weights"),
        (NewName, r"expected names \[\], found \['late'\]"),
        (OtherShape, "declared \\(1,\\)"),
        (ChangesBroadcast, "changed in place \\('0/m'\\)"),
        (ChangingMessage, "the same names every round"),
        (SetsDrift, "add to ctx.drift"),
        (NotFinite, "not finite"),
        (Unpicklable, "cannot travel"),
        (CountsInTheProcess, "resumed it gives other weights"),
    ],
)
def test_every_guard_trips(aggregator, words):
    with pytest.raises(AssertionError, match=words):
        check_aggregator(aggregator(), workers=1)
