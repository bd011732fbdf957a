"""Seeds of a client's round: the numbers of ``torch.manual_seed``, without its cost."""

import random

import numpy as np
import torch

from fedlit.core.randomness import seed_process
from fedlit.core.seeds import derive_seed


def test_the_default_generators_are_as_after_torchs_own_seeding():
    seed_process(3, "round", 7, "site-1")
    drawn = torch.rand(5), np.random.random(), random.random()
    value = derive_seed(3, "round", 7, "site-1")
    torch.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)
    assert torch.equal(drawn[0], torch.rand(5))
    assert drawn[1:] == (np.random.random(), random.random())


class Device:
    """Represents a device's generator."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def manual_seed(self, value: int) -> None:
        self.seeds.append(value)


def test_every_cuda_device_in_use_is_seeded_too(monkeypatch):
    devices = Device(), Device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", devices)
    seed_process(3, "round")
    assert [device.seeds for device in devices] == [[derive_seed(3, "round")]] * 2


def test_cuda_that_is_still_to_be_initialised_is_seeded_by_torch(monkeypatch):
    seeds = []
    monkeypatch.setattr("fedlit.core.randomness._accelerated", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    seed_process(3, "round")
    assert seeds == [derive_seed(3, "round")]
