"""An aggregator for every problem that ``check_aggregator`` finds."""

import multiprocessing
import os
import threading

import pytest
import torch
from refusals import refused

from fedlit.aggregators import Aggregator
from fedlit.core.errors import WorkerError
from fedlit.testing import ToyData, check_aggregator


class StateOnSelf(Aggregator):
    def on_aggregate_end(self, state, server, mean, rnd):
        self.momentum = 0.9 * getattr(self, "momentum", 0) + server.delta
        server.delta = self.momentum


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
        ctx.broadcast["m"] += 1


class ChangingMessage(Aggregator):
    def on_client_round_end(self, ctx):
        return {f"extra{ctx.rnd.index}": ctx.w.clone()}


class SetsCorrection(Aggregator):
    def on_client_round_start(self, ctx):
        ctx.correction.bias.copy_(0.1 * ctx.w)


class NotFinite(Aggregator):
    def on_client_round_end(self, ctx):
        return {"x": ctx.w / 0}


class LosesItsChange(Aggregator):
    def on_client_round_end(self, ctx):
        ctx.w.lerp_(ctx.start, 0.5)
        return {}


class ChangesWhatIsRead(Aggregator):
    def on_before_send(self, ctx, change):
        ctx.w.lerp_(ctx.start, 0.5)
        return change.sub_(ctx.start.mul_(0.1))


class OtherChange(Aggregator):
    def on_before_send(self, ctx, change):
        return change[1:]


class Misspelt(Aggregator):
    def on_client_round_begin(self, ctx):
        """Never called."""


class Unpicklable(Aggregator):
    def __init__(self):
        self.lock = threading.Lock()


class CountsInTheProcess(Aggregator):
    calls = 0

    def on_client_round_start(self, ctx):
        type(self).calls += 1
        ctx.correction.bias += 1e-3 * type(self).calls


@pytest.mark.parametrize(
    ("aggregator", "words"),
    [
        (StateOnSelf, "(?s)holds only hyper-parameters.*resumed it gives other weights"),
        (OtherShape, "declared \\(1,\\)"),
        (ChangesBroadcast, "changed in place \\('0/m'\\)"),
        (ChangingMessage, "the same names every round"),
        (SetsCorrection, "add to ctx.correction"),
        (NotFinite, "not finite"),
        (LosesItsChange, "on_client_round_end changes ctx.w, which is lost.*return another change from on_before_send"),
        (ChangesWhatIsRead, "(?s)on_before_send changes ctx.w, which is lost.*changes ctx.start in place"),
        (OtherChange, r"OtherChange.on_before_send: expected .* a tensor \(\d+,\) torch.float64; found \(\d+,\)"),
        (Misspelt, "on_client_round_begin is no hook.*did you mean on_client_round_"),
        (Unpicklable, "cannot travel"),
        (CountsInTheProcess, "resumed it gives other weights"),
    ],
)
def test_every_guard_trips(aggregator, words):
    with pytest.raises(AssertionError, match=words):
        check_aggregator(aggregator(), workers=1, data=ToyData(3, size=4, labelled=2))


class EndsItsProcess(Aggregator):
    def on_client_round_start(self, ctx):
        if multiprocessing.parent_process():
            os._exit(3)


@pytest.mark.slow
def test_a_worker_that_dies_is_not_told_as_a_fault_of_the_aggregator():
    with refused(WorkerError, "exit code 3"):
        check_aggregator(EndsItsProcess())
    assert multiprocessing.active_children() == []


class CannotStart(Aggregator):
    def __init__(self):
        self.mu = 0.1

    def __setstate__(self, state):
        if multiprocessing.parent_process():
            raise ImportError("not here")
        vars(self).update(state)


def test_a_worker_that_cannot_start_is_told_as_such():
    with pytest.raises(WorkerError, match=r"(?s)start-up failed in a worker process:.*not here"):
        check_aggregator(CannotStart())


class SingleState(Aggregator):
    def server_state(self, layout, w):
        return {"m": torch.zeros(len(w))}

    def on_aggregate_end(self, state, server, mean, rnd):
        state["m"] = state["m"] + server.delta


class SingleStep(Aggregator):
    def on_after_optimizer_step(self, ctx, batches):
        ctx.w.lerp_(torch.zeros(len(ctx.w)), 0.1)


class SingleMessage(Aggregator):
    def on_before_send(self, ctx, change):
        return change.float()


@pytest.mark.parametrize("kind", [SingleState, SingleStep, SingleMessage])
def test_tensors_in_single_precision_are_named_as_that(kind):
    with refused(AssertionError, kind.__name__, "this check computes in float64", "layout.dtype"):
        check_aggregator(kind(), workers=1)
