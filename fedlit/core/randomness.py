"""Random numbers that derive from their purpose, never from what ran before.

Every draw of a federation is seeded from (seed, purpose, client, round ...), so a run gives the same results with any
number of processes, and after a resume.
"""

import hashlib
import hmac
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedlit.core.seeds import derive_seed


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a new CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def secret_generator(secret: bytes, *purpose: str | int) -> np.random.Generator:
    """Return a generator that depends on a secret and on every word of ``purpose``; for draws and noise of privacy."""
    digest = hashlib.sha256(secret + "\x1f".join(map(str, ("", *purpose))).encode()).digest()
    key, counter = (int.from_bytes(digest[start : start + 16], "big") for start in (0, 16))
    return np.random.Generator(np.random.Philox(key=key, counter=counter << 128))


def keyed_hash(secret: bytes, words: tuple, tensors: Mapping[str, Tensor]) -> bytes:
    """Return a hash of words and of named tensors that nobody can compute without the secret."""
    digest = hmac.new(secret, repr(words).encode(), hashlib.sha256)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name!r} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # strides of an array may be 0
        digest.update(plain.reshape(-1).view(torch.uint8).numpy())
    return digest.digest()


def seed_process(seed: int, *purpose: str | int) -> None:
    """Seed the default generators (dropout and torchvision draw from them) for one client round.

    The numbers are those of ``torch.manual_seed``, which takes about a millisecond because it checks every kind of
    device.
    """
    value = derive_seed(seed, *purpose)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        for device in torch.cuda.default_generators:
            device.manual_seed(value)
    elif _accelerated():  # another kind of device, or CUDA before its initialisation
        torch.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context manager in which the default generators start from a fixed seed; later draws are as without it."""
    of_torch, of_numpy, of_python = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()
