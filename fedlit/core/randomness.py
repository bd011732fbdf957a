"""Randomness derives from what it is for, never from what ran before.

Every draw of a federation is seeded from (seed, purpose, client, round ...), so a run gives the same numbers
whatever the number of processes, and after a resume.
"""

import hashlib
import random
import zlib
from functools import cache

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Derive a 63-bit seed that depends on the run's seed and on every word of ``purpose``."""
    text = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Give a CPU generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def numpy_generator(seed: int, *purpose: str) -> np.random.Generator:
    """Give a generator of NumPy for one purpose, such as a partition; data draw from these."""
    return np.random.default_rng([seed, *(zlib.crc32(word.encode()) for word in purpose)])


def seed_process(seed: int, *purpose: str | int) -> None:
    """Seed the default generators (dropout and torchvision draw from them) for one client round.

    The numbers are those of ``torch.manual_seed``, which takes about a millisecond: it looks for every kind of device.
    """
    value = derive_seed(seed, *purpose)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        for device in torch.cuda.default_generators:
            device.manual_seed(value)
    elif _accelerated():  # of another kind, or CUDA that is still to be initialised
        torch.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()
