"""Changes that a client makes to its update before it is sent."""

import pytest
import torch
from engine_rounds import opened
from engine_rounds import run as run_clients
from simulation import Simulation, simulate
from torch import Tensor
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator, ClientContext, FedBN, FedProx
from fedlit.aggregators.composition import Composition
from fedlit.core.messages import Payload
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule


class KeepsItsVector(Aggregator):
    """Keeps the change that it received, without a copy, as error feedback does, and sends it two times more."""

    def client_state(self, layout):
        return {"last": layout.zeros()}

    def on_before_send(self, ctx, change):
        ctx.state["last"] = ctx.scratch["change"] = change
        return change

    def on_client_round_end(self, ctx):
        return {"once": ctx.scratch["change"], "again": ctx.scratch["change"]}

    def on_aggregate_end(self, state, server, mean, rnd):
        assert torch.equal(mean["once"], server.delta)
        assert torch.equal(mean["again"], server.delta)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_change_that_a_client_keeps_is_what_it_was(workers: int):
    """The client's weight of 1/3 multiplies the sent vector in place, not the kept one."""
    torch.manual_seed(0)
    federation = Federation([KeepsItsVector()], schedule=ConstantSchedule(2, "steps"))
    with opened(federation, ToyNet(), ToyData(3), workers) as (session, server):
        _, total, _ = run_clients(session, server)
        session.engine.commit()
        kept = [state.load().aggregators[0]["last"] for state in session.engine.client_states().values()]
        sent = sum(client.weight * last for client, last in zip(session.clients.values(), kept, strict=True))
        torch.testing.assert_close(sent, total.vectors["w"], rtol=1e-5, atol=1e-8)


def run(aggregators: list[Aggregator], rounds: int = 4) -> Simulation:
    torch.manual_seed(0)
    federation = Federation(aggregators, rounds=rounds, schedule=ConstantSchedule(3, "steps"), participation=0.6)
    return simulate(ToyNet(), ToyData(5, labelled=2), federation)


def one_round(aggregators: list[Aggregator]) -> Payload:
    """Return the sum of what clients send in a first round."""
    federation = Federation(aggregators, schedule=ConstantSchedule(3, "steps"))
    with opened(federation, ToyNet(), ToyData()) as (session, server):
        return run_clients(session, server)[1]


class Clip(Aggregator):
    """Clips the change to a length, and records the lengths."""

    def __init__(self, norm: float) -> None:
        self.norm, self.seen = norm, []

    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        self.seen.append(float(change.norm()))
        return change.mul_((self.norm / change.norm()).clamp(max=1.0))


class Halve(Aggregator):
    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        return change / 2


class ClipHalf(Composition):
    def __init__(self, norm: float) -> None:
        super().__init__(Clip(norm), Halve())


def test_the_change_is_what_is_sent_and_what_diagnostics_see():
    clip = Clip(0.01)
    federation = Federation([clip, FedProx(0.1)], rounds=1, schedule=ConstantSchedule(3, "steps"))
    with opened(federation, ToyNet(), ToyData(1)) as (session, server):
        rnd, total, _ = run_clients(session, server)
        assert clip.seen[-1] > 0.02
        assert float(total.vectors["w"].norm()) == pytest.approx(0.01)
        metrics = federation.close_round(server, total, rnd, session)
    assert metrics["drift/update_norm"] == pytest.approx(0.01)


def test_hooks_are_called_in_list_order():
    clipped, halved = run([Clip(0.01), Halve()], 1), run([Halve(), Clip(0.01)], 1)
    assert torch.equal(run([ClipHalf(0.01)], 1).server.w, clipped.server.w)
    assert not torch.allclose(clipped.server.w, halved.server.w, rtol=0, atol=1e-4)


class Zeros(Aggregator):
    """Checks its change, and records the elements that the client keeps."""

    def __init__(self) -> None:
        self.seen = []

    def on_before_send(self, ctx: ClientContext, change: Tensor) -> Tensor:
        moved = ctx.w - ctx.start
        for private in ctx.mask.private(ctx.layout):
            moved[private] = 0
        assert torch.equal(change, moved)
        for private in ctx.mask.private(ctx.layout):
            self.seen.append((bool((ctx.w != ctx.start)[private].any()), bool(change[private].any())))
        return change + 1


def test_what_a_client_keeps_is_no_part_of_its_change():
    zeros = Zeros()
    total = one_round([zeros, FedBN()])
    assert set(zeros.seen) == {(True, False)}
    assert (total.vectors["w"] == 0).sum() == 8  # though the aggregator put values there


def test_vectors_that_share_memory_are_weighted_once():
    assert torch.equal(run([KeepsItsVector()], 1).server.w, run([], 1).server.w)


class TopK(Aggregator):
    """Sends the largest tenth of a client's change, as positions of 4 bytes and values."""

    def on_before_send(self, ctx, change):
        least = change.abs().topk(len(change) // 10).values[-1]
        return torch.where(change.abs() >= least, change, 0.0)

    def sent_bytes(self, ctx, change):
        return int(change.count_nonzero()) * (4 + change.element_size())


def test_bytes_of_a_compressed_change_are_counted_as_sent():
    def sent(*aggregators: Aggregator) -> tuple[int, ...]:
        federation = Federation([*aggregators], schedule=ConstantSchedule(3, "steps"))
        with opened(federation, ToyNet(), ToyData(1)) as (session, server):
            _, total, (report,) = run_clients(session, server)
            return report.bytes_up, int(total.vectors["w"].count_nonzero()), len(server.w)

    (whole, _, size), (compressed, values, _) = sent(), sent(TopK())
    assert values == size // 10
    assert whole - compressed == 4 * size - 8 * values
