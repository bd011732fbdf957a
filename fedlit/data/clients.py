"""The clients of a data module: their names, and the parts of their data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedlit.core.errors import ConfigError
from fedlit.data.records import SPLITS

if TYPE_CHECKING:  # to read labels needs no PyTorch
    from torch.utils.data import Dataset

    from fedlit.core.messages import ClientData


def parts_of(client: ClientData) -> list[tuple[str, Dataset]]:
    """Return the splits that a client has, as (split, data set)."""
    parts = zip(SPLITS, (client.train, client.val, client.test), strict=True)
    return [(split, data) for split, data in parts if data is not None]


def check_clients(owners: np.ndarray, splits: np.ndarray) -> list[str]:
    """Return the names of the clients in order, given client and split of each record, [N] str.

    Raises:
        ValueError: The lengths differ, a name is empty, two names are the same as a file name or metric key, or a
            client has fewer than two training images.
    """
    if owners.shape != splits.shape:
        raise ValueError(f"partition: expected a client for each of {len(splits)} images, found {list(owners.shape)}")
    names = sorted(set(owners.tolist()))
    if empty := sum(not name.strip() for name in owners.tolist()):
        raise ValueError(f"client names: {empty} images have an empty client name")
    distinct_names(names)
    training = Counter(owners[splits == "train"].tolist())
    short = [name for name in names if training[name] < 2]
    if short:
        raise ValueError(
            f"client {short[0]!r}: expected at least 2 training images, found {training[short[0]]} ({len(short)} of "
            f"{len(names)} clients are so). Choose fewer clients or another partition, or remove it."
        )
    return names


def distinct_names(names: Iterable[str]) -> None:
    """Refuse names of clients that are empty, or the same as a file name or metric key.

    Raises:
        ConfigError: Says which.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = re.sub(r"[^\w.\-]+", "_", name.strip()).casefold()
        if not name.strip():
            raise ConfigError("client names: expected at least a letter, found an empty name")
        if key in seen:
            raise ConfigError(
                f"client names {seen[key]!r} and {name!r} are the same in files and metrics: rename one in the source, or "
                f"merge them, of a table by data.sites {{{name}: {seen[key]}}}"
            )
        seen[key] = name
