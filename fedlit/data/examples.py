"""Digests of the examples of a data set, for comparing them."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedlit.core.examples import MapDataset, fetch
from fedlit.core.randomness import undisturbed


def fetched(dataset: MapDataset, number: int) -> str:
    """Return a digest of an example that is fetched after seeding the default generators, whose states are restored."""
    with undisturbed():
        return digest(fetch(dataset, torch.tensor([number])))


def digest(value: Any) -> str:
    """Return a digest of numbers, also in tuples and dicts; only the class of any other object counts."""
    total = hashlib.sha256()
    _add(total, "", value)
    return total.hexdigest()


def _add(total: Any, name: str, value: Any) -> None:
    if torch.is_tensor(value):
        value = value.detach().cpu().to(torch.float64).numpy()
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            _add(total, f"{name}/{number}", each)
        return
    total.update(f"{name} {type(value).__name__} {getattr(value, 'shape', '')}".encode())
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        total.update(np.asarray(value, dtype=np.float64).tobytes())
