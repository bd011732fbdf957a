"""A client's rounds against a plain loop in float64, the vectors that they need, and changes to what is sent."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from engine_rounds import opened
from engine_rounds import run as run_clients
from simulation import Simulation, simulate
from torch import Tensor
from torch.utils.data import TensorDataset
from toys import CLASSES, Quadratic, ToyData, ToyNet, program

from fedlit.aggregators import Aggregator, ClientContext, FedAvg, FedBN, FedProx
from fedlit.aggregators.composition import Composition
from fedlit.core.batches import BatchStream
from fedlit.core.fabric import make_fabric
from fedlit.core.hooks import initial_client_state
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.messages import Broadcast, Client, ClientData, Payload, Round
from fedlit.core.seeds import derive_seed
from fedlit.federation.engines.base import Worker
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule

STEPS, LR, MOMENTUM = 3, 0.1, 0.9
STARTS = (0.0, 5.0, -1.0)


class Valley(Quadratic):
    """The quadratic under SGD with momentum, its optimum moved by noise of the process's generator.

    Args:
        noise: Standard deviation of the noise.
    """

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        noise = torch.randn(len(batch[0]), dtype=torch.float64) if self.noise else 0.0
        return super().training_step((batch[0], batch[1] + self.noise * noise), batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=MOMENTUM)


class Optima(ToyData):
    """One client whose seven examples have different optima, so that it matters which are used."""

    def setup(self, stage=None) -> None:
        optima = torch.arange(1.0, 8.0, dtype=torch.float64)
        self.clients = {"a": ClientData("a", (), TensorDataset(torch.ones(7).double(), optima), None, None)}


def trained(module: Quadratic, aggregators: Sequence[Aggregator] = (), **training) -> tuple[list[float], BatchStream]:
    """The changes of the weight that a client sends in three rounds, and its stream of batches."""
    here = program(module.double(), list(aggregators), Optima(batch_size=2), **training)
    worker = Worker(here, make_fabric("cpu", precision="64-true"))
    rnd = Round(0, 0, 1.0, STEPS, "steps", 0, False, False, cohort=("a",))
    state, changes = worker.fresh_state(), []
    for index, start in enumerate(STARTS):
        down = Broadcast(
            torch.tensor([start], dtype=torch.float64), worker.local.flat.stats.clone(), [{} for _ in aggregators]
        )
        payload, [(state, _)] = worker.train([("a", state)], down, replace(rnd, index=index))
        changes.append(float(payload.vectors["w"]))
    return changes, BatchStream(here.data["a"].train, here.batch_size, here.seed, "a")


class Jump(Aggregator):
    """Sets the clients' start."""

    def on_client_round_start(self, ctx) -> None:
        ctx.w.add_(3.0)


def by_hand(stream: BatchStream, keep: bool, noise: float = 0.0, starts: tuple[float, ...] = STARTS) -> list[float]:
    """The same by an explicit loop."""
    changes, momentum, position = [], None, 0
    for index, start in enumerate(starts):
        x, momentum = start, momentum if keep else None
        torch.manual_seed(derive_seed(0, "round", index, "a"))
        for _ in range(STEPS):
            optima = stream[position][1]
            moved = optima + noise * torch.randn(len(optima), dtype=torch.float64) if noise else optima
            gradient = float((x - moved).mean())
            momentum = gradient if momentum is None else MOMENTUM * momentum + gradient
            x, position = x - LR * momentum, position + 1
        changes.append(x - start)
    return changes


@pytest.mark.parametrize("optimizer_state", ["keep", "reset"])
def test_rounds_go_on_through_the_clients_batches_with_its_optimizer(optimizer_state):
    changes, stream = trained(Valley(), optimizer_state=optimizer_state)
    assert changes == pytest.approx(by_hand(stream, optimizer_state == "keep"), rel=1e-12)


def test_each_round_has_noise_of_its_own():
    changes, stream = trained(Valley(noise=1.0))
    assert changes == pytest.approx(by_hand(stream, keep=False, noise=1.0), rel=1e-12)


def test_where_an_aggregator_lets_a_client_begin_is_no_part_of_its_change():
    changes, stream = trained(Valley(), [Jump()])
    starts = tuple(start + 3.0 for start in STARTS)
    assert changes == pytest.approx(by_hand(stream, keep=False, starts=starts), rel=1e-12)


@pytest.mark.parametrize(("examples", "sizes"), [(7, [3, 3]), (8, [3, 3, 2]), (9, [3, 3, 3])])
def test_a_pass_shows_each_example_once_in_an_order_of_its_own(examples, sizes):
    """Except for a single remaining example, which BatchNorm could not take."""
    stream = BatchStream(TensorDataset(torch.arange(examples)), 3, 0, "a")
    passes = [[stream[k * len(sizes) + i][0] for i in range(len(sizes))] for k in range(3)]
    assert [[len(batch) for batch in batches] for batches in passes] == [sizes] * 3
    orders = [torch.cat(batches).tolist() for batches in passes]
    assert all(len(set(order)) == sum(sizes) for order in orders)
    assert len(set(map(tuple, orders))) == 3


def test_a_gradient_below_the_clip_is_left_alone():
    changes, stream = trained(Valley(), gradient_clip=1e6)
    assert changes == pytest.approx(by_hand(stream, keep=False), rel=1e-12)


class Watches(Aggregator):
    """Reads the start of a round after its end."""

    def on_client_round_end(self, ctx):
        return {"start": ctx.start}


@pytest.mark.parametrize(
    ("aggregator", "sent", "corrected"),
    [(FedAvg(), True, False), (FedBN(), False, False), (Watches(), False, False), (FedProx(0.1), False, True)],
    ids=["FedAvg", "FedBN", "a hook", "FedProx"],
)
def test_a_round_keeps_only_the_vectors_that_somebody_needs(aggregator, sent, corrected):
    """Without hooks and personal parts, a client starts at the sent weights, and there is no correction."""
    torch.manual_seed(0)
    local = LocalModel(make_fabric("cpu"), ToyNet(), [aggregator], LocalTraining())
    client, rnd = Client("alone", CLASSES, 4, 1.0), Round(0, 0, 1.0, 1, "steps", 0, True, True, cohort=("alone",))
    down = Broadcast(local.flat.w + 0.01, local.flat.stats.clone(), [{}])
    expected = down.w.clone()
    batch = torch.randn(4, 1, 8, 8), torch.ones(4, 3)
    assert "grad" not in vars(local.flat)
    state = initial_client_state([aggregator], local.layout)
    state.w = local.mask(client).part(local.layout, expected) + 0.01  # what it has of its own differs
    contexts = local.begin(client, state, down, rnd, 1, lambda: batch)
    assert (local.start is down.w) == sent
    assert ("bias" in vars(local.correction)) == corrected
    began = local.flat.w.clone()
    local.step(contexts, [batch], 0)
    into = torch.empty_like(expected)
    reply = local.end(contexts, down, into)
    assert reply["w"] is into
    assert torch.equal(down.w, expected)
    assert torch.equal(reply["w"], local.flat.w - began)
    assert reply["w"].count_nonzero() > 0


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
