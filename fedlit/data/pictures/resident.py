"""Image stores as one tensor on the device that trains."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedlit.core.system.devices import to_device
from fedlit.data.pictures.images import ImageStore

CHUNK = 2**26
"""Number of bytes that are copied at a time."""


class ResidentStore:
    """A copy of a store's images as one uint8 tensor [N, channels, height, width] on a device."""

    def __init__(self, store: ImageStore, device: torch.device) -> None:
        self.path, self.shape = store.path, store.shape
        self._pictures = torch.empty(store.shape, dtype=torch.uint8, device=device)
        rows = max(1, CHUNK // max(1, math.prod(store.shape[1:])))
        for start in range(0, len(store), rows):
            chunk = np.arange(start, min(start + rows, len(store)))
            self._pictures[start : start + len(chunk)] = store[chunk]

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, indices: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """Return a copy of some images, uint8 [B, C, H, W], on the device."""
        rows = torch.from_numpy(np.array(indices, dtype=np.int64))
        return self._pictures.index_select(0, to_device(rows, self._pictures.device))
