"""A client's rounds against a plain loop over its batches, in float64."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset
from toys import Quadratic, ToyData, program

from fedlit.aggregators import Aggregator
from fedlit.core.batches import BatchStream
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import Broadcast, ClientData, Round
from fedlit.core.seeds import derive_seed
from fedlit.federation.engines.base import Worker

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
