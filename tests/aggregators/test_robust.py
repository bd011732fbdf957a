"""Medians, trimmed means and bounded norms: values, the effect of a liar, and the source of single replies."""

import math
import statistics
from functools import partial

import pytest
import torch
from saddle_toys import Scorer, Sites
from simulation import Simulation, federated, simulate
from torch import Tensor
from toys import Problems, Quadratic, ToyData, ToyNet, composed

from fedlit.aggregators import (
    Aggregator,
    CoordinateMedian,
    FedAvg,
    FedBN,
    FedProx,
    NormBound,
    Scaffold,
    SurgicalHeads,
    TrimmedMean,
)
from fedlit.core.messages import Mask
from fedlit.federation.engines import base

EACH = [CoordinateMedian(), TrimmedMean(0.2), NormBound(), NormBound(12.5)]


def named(aggregator: Aggregator) -> str:
    return type(aggregator).__name__ + "".join(f"-{value}" for value in vars(aggregator).values())


federation = partial(federated, rounds=1, window=1)


def vector(name: str, what: str, size: int) -> Tensor:
    return torch.randn(
        size, generator=torch.Generator().manual_seed(sum(f"{name}{what}".encode())), dtype=torch.float64
    )


class Push(Aggregator):
    """Training with a known result: a client's weights and statistics change by fixed vectors."""

    def on_client_round_start(self, ctx) -> None:
        ctx.scratch["stats"] = ctx.stats.clone()

    def on_after_optimizer_step(self, ctx, batches) -> None:
        ctx.stats.copy_(ctx.scratch["stats"] + vector(ctx.client.name, "stats", ctx.stats.numel()))

    def on_before_send(self, ctx, change) -> Tensor:
        return vector(ctx.client.name, "w", change.numel())


class SomeNorms(FedBN):
    """Three of eight clients keep their normalisation layers."""

    def scope(self, layout, client):
        return (
            super().scope(layout, client) if client.name in ("site-1", "site-4", "site-6") else Mask.everything(layout)
        )


def median(values: dict[str, float], pi: dict[str, float]) -> float:
    return statistics.median(values.values())


def trimmed(values: dict[str, float], pi: dict[str, float]) -> float:
    ranked = sorted(values.values())
    number = math.ceil(0.2 * len(ranked))
    while len(ranked) - 2 * number < 1:
        number -= 1
    kept = ranked[number : len(ranked) - number]
    return sum(kept) / len(kept)


def mean(values: dict[str, float], pi: dict[str, float]) -> float:
    return sum(pi[n] * value for n, value in values.items()) / sum(pi[n] for n in values)


def bounded(changes: dict[str, list[float]], bound: float | None) -> dict[str, list[float]]:
    """Changes (of owners; None if an element is not shared), none longer than the bound."""
    norms = {n: math.sqrt(sum(x * x for x in change if x is not None)) for n, change in changes.items()}
    if bound is None:
        bound = statistics.median_low([norms[n] for n in changes if any(x is not None for x in changes[n])])
    scale = {n: min(1.0, bound / norm) if norm else 1.0 for n, norm in norms.items()}
    return {n: [None if x is None else scale[n] * x for x in change] for n, change in changes.items()}


def shared(done: Simulation, client, listed: list[Aggregator]) -> tuple[list[bool], bool]:
    """The weights that a client shares, and whether it shares its statistics, by parameter names only."""
    own, kept = [], any(isinstance(a, FedBN) and not a.scope(done.session.layout, client).owned.all() for a in listed)
    for entry in done.session.layout.parameters:
        rows = [True] * entry.shape[0]
        if any(isinstance(a, SurgicalHeads) for a in listed) and entry.name.startswith("head."):
            rows = [c in client.classes for c in done.session.classes]
        if kept and entry.name.startswith("body.1."):
            rows = [False] * entry.shape[0]
        own += [row for row in rows for _ in range(entry.size // entry.shape[0])]
    return own, not kept


ALL_KEEP, SOME_KEEP = [FedBN(), SurgicalHeads()], [SomeNorms(), SurgicalHeads()]


@pytest.mark.parametrize(
    ("aggregator", "others"),
    [
        *((aggregator, SOME_KEEP) for aggregator in EACH),
        (CoordinateMedian(), ALL_KEEP), (NormBound(), ALL_KEEP), (TrimmedMean(0.2), []),
    ],
    ids=lambda value: named(value) if isinstance(value, Aggregator) else "+".join(named(a) for a in value) or "alone",
)  # fmt: skip
def test_against_a_loop_over_elements(aggregator, others):
    listed = [Push(), aggregator, *others]
    weights = "uniform" if isinstance(aggregator, CoordinateMedian | TrimmedMean) else "examples"
    torch.manual_seed(0)
    cohort = 8 if isinstance(aggregator, TrimmedMean) else 4  # so many that owners of a part cut fewer than all
    federation_of_eight = federation(listed, participation=cohort / 8, weights=weights)
    done = simulate(ToyNet().double(), ToyData(8, labelled=1), federation_of_eight)
    starts = done.start.w, done.start.stats
    clients = {name: done.session.clients[name] for name in done.cohorts[0]}
    assert len(clients) == cohort
    pi = {name: client.weight for name, client in clients.items()}
    owned = {name: shared(done, client, listed) for name, client in clients.items()}
    for what, start, after in zip(("w", "stats"), starts, (done.server.w, done.server.stats), strict=True):
        size = len(start)
        changes = {}
        for name in clients:
            own = owned[name][0] if what == "w" else [owned[name][1]] * size
            pushed = vector(name, what, size).tolist()
            changes[name] = [x if mine else None for x, mine in zip(pushed, own, strict=True)]
        rule = {CoordinateMedian: median, TrimmedMean: trimmed, NormBound: mean}[type(aggregator)]
        if isinstance(aggregator, NormBound) and any(x is not None for c in changes.values() for x in c):
            changes = bounded(changes, aggregator.norm if what == "w" else None)
        expected = []
        for j in range(size):
            values = {name: change[j] for name, change in changes.items() if change[j] is not None}
            expected.append(float(start[j]) + (rule(values, pi) if values else 0.0))
        torch.testing.assert_close(after.tolist(), expected, rtol=1e-11, atol=1e-12)


class Liar(Aggregator):
    """Replaces a client's update by -50 times itself; ``sent`` holds all honest updates."""

    sent: dict[str, Tensor] = {}

    def on_before_send(self, ctx, change) -> Tensor:
        self.sent[ctx.client.name] = change.clone()
        return change * -50 if ctx.client.name == "site-2" else change


def moved_by_a_liar(aggregator: Aggregator) -> tuple[Tensor, Tensor]:
    """The change of the weights in a round, and those of the honest clients [K, P]."""
    torch.manual_seed(0)
    done = simulate(ToyNet().double(), ToyData(7), federation([Liar(), aggregator], window=2))
    honest = [sent for name, sent in Liar.sent.items() if name != "site-2"]
    return done.server.w - done.start.w, torch.stack(honest)


def test_a_liar_does_not_move_the_weights_further_than_the_honest_clients():
    """A weight by a median or a trimmed mean, and their vector by a bound of its norm."""
    free, honest = moved_by_a_liar(FedAvg("uniform"))
    assert honest.abs().max() > 1e-3
    lowest, highest = honest.min(0).values - 1e-12, honest.max(0).values + 1e-12
    assert ((free >= lowest) & (free <= highest)).double().mean() < 0.5
    for aggregator in (CoordinateMedian(), TrimmedMean(0.15)):
        delta, _ = moved_by_a_liar(aggregator)
        assert bool(((delta >= lowest) & (delta <= highest)).all()), named(aggregator)
    for norm, most in ((None, float(honest.norm(dim=1).max())), (0.05, 0.05)):
        delta, _ = moved_by_a_liar(NormBound(norm))
        assert 0 < float(delta.norm()) <= most
        assert float(free.norm()) > 2 * most


def test_a_bound_that_nobody_reaches_is_fedavg():
    torch.manual_seed(0)
    module, data, given = ToyNet().double(), ToyData(4, labelled=2), {"rounds": 2, "participation": 0.8}
    ends = [
        simulate(module, data, federation([*mine, FedBN()], **given)).server
        for mine in ([FedAvg()], [FedAvg(), NormBound(1e6)])
    ]
    assert torch.equal(ends[0].w, ends[1].w)


def test_what_other_algorithms_send_stays_a_mean():
    torch.manual_seed(0)
    module, data = ToyNet().double(), ToyData(5)
    robust, plain = (
        simulate(module, data, federation([Scaffold(), a], window=3)).server for a in (TrimmedMean(), FedAvg("uniform"))
    )
    assert torch.equal(robust.aggregators[0]["c"], plain.aggregators[0]["c"])
    assert plain.aggregators[0]["c"].abs().max() > 0
    assert not torch.equal(robust.w, plain.w)


def test_measuring_rounds_are_added_up():
    """Sums of an objective have other names and sizes than those of a round."""
    module = Scorer(lr=0.0)
    robust, plain = (simulate(module, Sites(), federation([a])).server for a in (CoordinateMedian(), FedAvg("uniform")))
    torch.testing.assert_close(robust.w, plain.w, rtol=1e-14, atol=0)


def many(workers: int, aggregator: Aggregator) -> Tensor:
    """A round over clients of which most agree on 1."""
    problems = {f"site {k:02}": (1.0, 1.0 if k % 5 else 1000.0) for k in range(13)}
    done = simulate(Quadratic(lr=0.5), Problems(**problems), federation([aggregator]), workers=workers)
    return done.server.w


def test_of_many_clients_each_is_a_reply_of_its_own_whatever_the_workers(monkeypatch):
    """So many that jobs have two clients where replies are added up."""
    monkeypatch.setattr(base, "JOBS", 6)
    one = many(1, TrimmedMean(0.25))
    assert float(one) == pytest.approx(0.5, rel=1e-12)
    assert torch.equal(one, many(2, TrimmedMean(0.25)))


def test_a_composition_reduces_as_the_part_that_does():
    module, parts = ToyNet(), [FedProx(0.1), NormBound()]
    ends = [simulate(module, ToyData(), federation(a, window=3)).server.w for a in ([composed(*parts)], parts)]
    assert torch.equal(*ends)
