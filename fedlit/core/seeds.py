"""Seeds for one purpose each, and NumPy generators that use them; data modules draw from these, without PyTorch."""

import hashlib
import zlib

import numpy as np


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Derive a 63-bit seed that depends on the run's seed and on every word of ``purpose``."""
    text = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def numpy_generator(seed: int, *purpose: str) -> np.random.Generator:
    """Return a NumPy generator for one purpose, such as a partition."""
    return np.random.default_rng([seed, *(zlib.crc32(word.encode()) for word in purpose)])
