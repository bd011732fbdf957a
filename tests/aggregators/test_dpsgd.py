"""DPSGD: without noise it is the plain step, its noise is what is accounted, and nothing else leaves a client."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from private_toys import Canaries, EqualClients, Linear, PlainNet, local
from refusals import refused
from simulation import federated, simulate

from fedlit.aggregators import CODASCA, DPSGD, NPA, FedBN, FedProx, SurgicalHeads
from fedlit.core.batches import PoissonStream
from fedlit.core.errors import ConfigError
from fedlit.core.hooks import initial_client_state
from fedlit.core.messages import Broadcast, Client, Round
from fedlit.core.rounds import client_round
from fedlit.objectives import AUCSaddle

OPEN = {"clip": math.inf, "delta": 1e-3, "noise": 0.0}
COMPANIONS = [[CODASCA(0.1)], [SurgicalHeads(), FedBN(), FedProx(0.3)]]


def net(saddle: bool = False) -> PlainNet:
    torch.manual_seed(0)
    made = PlainNet()
    if saddle:
        made.objective = AUCSaddle(prior=0.3, start="zeros")
        made.objective.build(len(made.classes))
    return made


@pytest.mark.filterwarnings("ignore:Scaffold or CODASCA. the schedule")
@pytest.mark.parametrize("others", COMPANIONS, ids=lambda others: "+".join(type(a).__name__ for a in others))
def test_without_noise_clip_and_draws_it_is_the_plain_step(others):
    saddle = any(isinstance(a, CODASCA) for a in others)
    with_it, without = (
        simulate(net(saddle), EqualClients(2, 20, 2, 20), federated([*others, *more], rounds=2))
        for more in ([DPSGD(**OPEN)], [])
    )
    assert (with_it.server.w - with_it.start.w).norm() > 1e-3
    torch.testing.assert_close(with_it.server.w, without.server.w, rtol=0, atol=1e-12)


def test_npa_takes_one_private_step_a_round():
    done = [
        simulate(net(True), EqualClients(2, 20, 3, 20), federated([NPA(0.1), *more], 2, 1))
        for more in ([DPSGD(**OPEN)], [])
    ]
    torch.testing.assert_close(done[0].server.w, done[1].server.w, rtol=0, atol=1e-12)


NUMBER, STEPS = 2500, 4


def scores(aggregator: DPSGD, batch_size: int, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray, float]:
    """Play a client's round on canaries; return who is in, everyone's score, and the rate.

    A score is the sum over steps of the inner product of canary and noised sum, in units of the clipping norm.
    """
    torch.manual_seed(0)
    member = np.random.default_rng(0).random(NUMBER) < 0.5
    data = Canaries(np.flatnonzero(member), NUMBER, length=3 * aggregator.clip)
    stream = PoissonStream(data, batch_size or len(data), np.full(len(data), ""), b"secret", "a")
    if not batch_size:
        stream.rate = 1.0
    model = local(Linear(NUMBER), [aggregator], "32-true")
    state = initial_client_state([aggregator], model.layout)
    noise = aggregator.server_state(model.layout, model.flat.w)
    down = Broadcast(torch.zeros(NUMBER), torch.zeros(0), [aggregator.broadcast(noise, None)])
    rnd = Round(0, 0, 1.0, steps, "steps", 0, False, False)
    payload, _, _ = client_round(model, stream, Client("a", (), len(data), 1.0), state, down, rnd)
    sums = -payload.vectors["w"].double().numpy() * stream.batch_size  # SGD with a rate of 1
    return member, sums / aggregator.clip, stream.rate


def test_canaries_find_the_noise_that_is_claimed():
    noise = 2.0
    member, found, _ = scores(DPSGD(0.5, noise, delta=1e-5), batch_size=0)
    outside, inside = found[~member], found[member]
    assert outside.std() / math.sqrt(STEPS) == pytest.approx(noise, rel=0.05)
    assert outside.mean() == pytest.approx(0, abs=0.2)
    assert inside.mean() == pytest.approx(STEPS, abs=0.2)  # each of the gradients is clipped, and counted in each step
    assert inside.std() / math.sqrt(STEPS) == pytest.approx(noise, rel=0.05)
    claimed = math.sqrt(STEPS) / noise  # mu of the Gaussian pair
    spread = found[~member].std()
    error = math.sqrt(1 / member.sum() + 1 / (~member).sum())
    lower = (inside.mean() - outside.mean()) / spread - 2 * error
    assert 0.9 * claimed <= lower <= claimed


def test_noise_has_the_digits_of_the_gradients():
    """Whoever rounds noise of float32 away, in float64, would see gradients that are shorter than its last digit."""
    model, data = local(Linear(64), [DPSGD(1.0, 1.0, delta=1e-3)]), Canaries(np.arange(32), 64, 1e-12)
    stream = PoissonStream(data, 32, np.full(32, ""), b"secret", "a", declared=32)
    down = Broadcast(torch.zeros(64).double(), torch.zeros(0).double(), [{"noise": torch.tensor(1.0)}])
    state, client = initial_client_state(model.aggregators, model.layout), Client("a", (), 32, 1.0)
    rnd = Round(0, 0, 1.0, 1, "steps", 0, False, False)
    sums = -client_round(model, stream, client, state, down, rnd)[0].vectors["w"] * stream.batch_size
    rounded = (sums - sums.float()).abs() < 1e-11
    assert rounded[:32].sum() == rounded[32:].sum() == 0


def test_the_divisor_is_the_batch_size_and_not_the_draw():
    member, found, rate = scores(DPSGD(0.5, 0.0, delta=1e-5), batch_size=125, steps=8)
    drawn = np.rint(found[member])
    np.testing.assert_allclose(found[member], drawn, atol=1e-4)
    assert drawn.sum() != 8 * 125
    assert drawn.sum() == pytest.approx(8 * rate * member.sum(), rel=0.1)
    assert not found[~member].any()


def test_nothing_that_follows_the_images_is_reported():
    model, data = local(Linear(4), [DPSGD(1.0, 1.0, delta=1e-3)]), Canaries(np.zeros(40, int), 4, 1.0)
    stream = PoissonStream(data, 10, np.full(40, ""), b"secret", "a")
    down = Broadcast(torch.zeros(4).double(), torch.zeros(0).double(), [{"noise": torch.tensor(1.0)}])
    rnd = Round(0, 0, 1.0, 3, "steps", 0, False, False)
    state, client = initial_client_state(model.aggregators, model.layout), Client("a", (), 40, 1.0)
    _, _, report = client_round(model, stream, client, state, down, rnd)
    assert math.isnan(report.loss)
    assert (report.logged, report.metrics, report.still) == ({}, {}, "")
    with refused(ConfigError, "'a'", "measuring round"):
        client_round(model, stream, client, state, down, replace(rnd, window=0))


def test_a_round_repeated_gives_the_same_noise_and_another_question_another():
    one, same, other = (
        simulate(net(), EqualClients(2, batch_size=4), federated([DPSGD(1.0, noise, delta=1e-3)], rounds=2)).server.w
        for noise in (1.0, 1.0, 1.0000001)
    )
    assert torch.equal(one, same)
    assert (one - other).norm() > 0.1 * one.norm()


class Counting(PlainNet):
    """A model with a statistic of its images."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def training_step(self, batch, batch_idx):
        self.mean += batch[0].mean()
        return super().training_step(batch, batch_idx)


def test_a_statistic_of_images_is_refused_before_it_leaves():
    with refused(ConfigError, "DPSGD", "buffer"):
        simulate(Counting(), EqualClients(), federated([DPSGD(1.0, 1.0, delta=1e-3)]))


def test_arguments_that_contradict_each_other():
    for arguments in (
        {},
        {"noise": 1.0, "epsilon": 8.0},
        {"noise": 1.0, "clip": math.inf},
        {"noise": 1.0, "clip": 0.0},
        {"noise": 1.0, "clip": 1e-30},  # the norm of a longer gradient would be 0 in float32
    ):
        with refused(ConfigError, "DPSGD"):
            DPSGD(**{"clip": 1.0, "delta": 1e-5} | arguments)


def test_noise_that_was_never_computed_is_an_error():
    aggregator = DPSGD(epsilon=8.0, delta=1e-5)
    with refused(ConfigError, "noise multiplier"):
        scores(aggregator, 250, steps=1)
