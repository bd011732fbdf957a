"""Perceptual hashes: 64 bits that two copies of a picture share, also after compression, resizing or a small crop."""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

SIDE, FREQUENCIES = 32, 8


@cache
def _cosines() -> np.ndarray:
    """Return the cosines of the frequencies 1 to 8 of a DCT-II over 32 points, [8, 32]."""
    points, waves = np.arange(SIDE) + 0.5, np.arange(1, FREQUENCIES + 1)
    return np.cos(np.pi / SIDE * waves[:, None] * points)


def perceptual_hashes(pictures: "np.ndarray | torch.Tensor") -> np.ndarray:
    """Return the hash of each picture, [N] uint64, given uint8 [N, channels, height, width].

    A picture is averaged to 32 x 32 grey pixels. A bit says whether the cosine transform at one of 8 x 8 low frequencies is
    above the median of the 64; the mean brightness, and stripes along one side, have no part in it. This is the hash that
    is called pHash, without its first row and column: those are alike in all chest X-rays.
    """
    import torch  # where a picture was decoded; it takes seconds
    from torch.nn.functional import adaptive_avg_pool2d

    grey = torch.from_numpy(np.array(pictures, dtype=np.float32)).mean(dim=1, keepdim=True)
    small = adaptive_avg_pool2d(grey, SIDE)[:, 0].double().numpy()
    cosines = _cosines()
    waves = (cosines @ small @ cosines.T).reshape(len(small), -1)
    bits = waves > np.median(waves, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
