"""Batches of private steps: patients by Poisson sampling, one image each, and noise of one question only."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedlit.core.batches import PoissonStream, rounded_down
from fedlit.core.messages import Broadcast, Client, ClientState, Round

IMAGES = 3
SHOWN = TensorDataset(torch.arange(300.0)[:, None])
PATIENTS = np.repeat([f"p{i}" for i in range(100)], IMAGES)
ROUND = Round(0, 0, 1.0, 1, "steps", 0, False, False)
STATE = ClientState(0, torch.zeros(0), torch.zeros(0), {}, [])
DOWN = Broadcast(torch.zeros(3), torch.zeros(0), [{"noise": torch.tensor(1.0)}])


def stream(batch_size: int = 20, secret: bytes = b"s", client: str = "a", patients=PATIENTS, data=SHOWN):
    return PoissonStream(data, batch_size, patients, secret, client)


def test_sizes_and_patients_are_those_of_poisson_sampling():
    made = stream()
    drawn = [made.indices(position) for position in range(400)]
    sizes = np.array([len(each) for each in drawn])
    assert sizes.mean() == pytest.approx(20, abs=0.6)
    assert sizes.std() == pytest.approx((100 * 0.2 * 0.8) ** 0.5, rel=0.12)
    people = [set((each // IMAGES).tolist()) for each in drawn]
    both = [len(one & other) for one, other in pairwise(people)]
    assert np.mean(both) == pytest.approx(100 * 0.2**2, abs=0.4)  # steps are independent: no pass over the patients
    images = torch.cat(drawn).bincount(minlength=300)
    assert images.min() > 0
    assert images.float().mean() == pytest.approx(400 * 0.2 / IMAGES, rel=0.05)


def test_a_patient_has_one_image_in_a_batch():
    made = stream(60)
    for position in range(50):
        patients = made.indices(position) // IMAGES
        assert len(patients.unique()) == len(patients)


def test_the_rate_follows_the_declared_number_and_not_the_counted_one():
    assert [rounded_down(n) for n in (7, 87, 210, 219, 1234, 20_999)] == [7, 87, 210, 210, 1200, 20_000]
    data = TensorDataset(torch.zeros(1234, 1))
    large = stream(32, patients=np.full(1234, ""), data=data)
    assert (large.declared, large.rate, large.steps_per_epoch) == (1200, 32 / 1200, 38)
    assert not large.named
    assert stream().named


def test_an_example_without_a_patient_is_one():
    patients = np.array(["p"] * 3 + [""] * 297)
    assert stream(298, patients=patients).rate == 1.0
    assert sorted((stream(298, patients=patients).indices(0) - 2).clamp(min=0).tolist()) == [*range(298)]


def test_an_empty_batch_has_noise():
    drawn = stream(1)
    empty = next(position for position in range(99) if not len(drawn.indices(position)))
    assert drawn[empty].examples == []
    assert drawn[empty].batch_size == 1
    assert drawn[empty].generator.standard_normal(3).any()


def test_draws_and_noise_are_pure_functions_of_secret_client_position_and_question():
    def seen(made: PoissonStream, position: int = 0, down=DOWN, rnd=ROUND, state=STATE, weight=1.0):
        made.ask(Client("a", (), 300, weight), state, down, rnd)
        return made.indices(position).tolist(), made[position].generator.standard_normal(4).tolist()

    first = seen(stream())
    assert seen(stream()) == first
    others = [
        seen(stream(secret=b"t")), seen(stream(client="b")), seen(stream(), 1),
        seen(stream(), down=replace(DOWN, w=torch.tensor([0.0, 0.0, 1e-7]))),
        seen(stream(), down=replace(DOWN, aggregators=[{"noise": torch.tensor(2.0)}])),
        seen(stream(), rnd=replace(ROUND, lr_factor=0.5)), seen(stream(), rnd=replace(ROUND, index=1)),
        seen(stream(21)), seen(stream(), weight=0.5), seen(stream(), state=replace(STATE, w=torch.ones(1))),
    ]  # fmt: skip
    for number in (0, 1):
        values = [str(each[number]) for each in (first, *others)]
        assert len(set(values)) == len(values)
