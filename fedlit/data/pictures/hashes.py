"""Perceptual hashes: 64 bits that hardly change with compression, resizing, equalisation or a small crop."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SIDE, FREQUENCIES = 32, 8

PARTS = (None, 1.0, 0.95, 0.9)
"""Parts of an image that have a hash: the whole image (None), and ranks of pixels in central shares of each side,
without borders. A central share is similar to a cropped copy."""

EVEN = 12
"""Largest difference in grey levels within a row or column that belongs to a border."""

LEVELS = 4
"""Number of grey levels that share a rank, so that noise in dark areas has no effect."""


@cache
def _cosines() -> np.ndarray:
    """Return the cosines of the frequencies 1 to 8 of a DCT-II over 32 points, [8, 32]."""
    points, waves = np.arange(SIDE) + 0.5, np.arange(1, FREQUENCIES + 1)
    return np.cos(np.pi / SIDE * waves[:, None] * points)


def perceptual_hashes(pictures: "np.ndarray | torch.Tensor") -> np.ndarray:
    """Return the hashes of the ``PARTS`` of each image, [N, 4] uint64, given uint8 [N, channels, height, width].

    A part is averaged to 32 x 32 grey pixels. Parts without borders use the ranks of the pixels, so that monotone
    changes of brightness have no effect. A bit is the sign of the cosine transform at one of 8 x 8 low frequencies,
    without the mean and without stripes along one side. So a hash follows from that of the mirrored, rotated or
    inverted image, see ``turned``. The hash is 0 only if all pixels are equal.
    """
    parts = shrunk(pictures, SIDE, PARTS)
    waves = _cosines() @ parts @ _cosines().T
    bits = (waves > 0) & (np.ptp(parts, axis=(2, 3), keepdims=True) > 0)
    return np.packbits(bits.reshape(*bits.shape[:2], -1), axis=2).view(">u8")[..., 0].astype(np.uint64)


def shrunk(pictures: "np.ndarray | Tensor", side: int, parts: Sequence[float | None]) -> np.ndarray:
    """Return the pixels, or their ranks, of some of the ``PARTS`` of images, averaged to [N, parts, side, side]."""
    import torch  # only if an image was decoded, because the import takes seconds
    from torch.nn.functional import adaptive_avg_pool2d

    small = np.empty((len(pictures), len(parts), side, side))
    for row, grey in enumerate(torch.from_numpy(np.array(pictures, dtype=np.float32)).mean(dim=1)):
        for column, part in enumerate(parts):
            edges = [_edges(grey, axis, part) if part else slice(None) for axis in (0, 1)]
            pixels = adaptive_avg_pool2d(grey[tuple(edges)][None], side).flatten().numpy()
            small[row, column] = (_ranks(pixels) if part else pixels).reshape(side, side)
    return small


def _ranks(pixels: np.ndarray) -> np.ndarray:
    """Return twice the mean rank of each pixel; pixels of the same ``LEVELS`` have the same rank."""
    levels = (pixels // LEVELS).astype(np.intp)
    counts = np.bincount(levels)
    return (2 * np.cumsum(counts) - counts)[levels]


def _edges(grey: "Tensor", axis: int, share: float) -> slice:
    """Return the central share of an image's rows or columns without borders."""
    size, across = grey.shape[axis], 1 - axis
    uneven = np.flatnonzero((grey.amax(across) - grey.amin(across)).numpy() > EVEN)
    first, last = (uneven[0], uneven[-1] + 1) if len(uneven) > size / 2 else (0, size)
    first, last = first + (first > 0), last - (last < size)  # resizing mixes a border with the next row
    cut = round((last - first) * (1 - share) / 2)
    return slice(first + cut, last - cut)


def turned(hashes: np.ndarray, quarters: int, mirrored: bool = False) -> np.ndarray:
    """Return the hashes, uint64 [N], of images that are mirrored and then rotated by ``np.rot90``."""
    rows = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    bits = rows.reshape(-1, FREQUENCIES, FREQUENCIES)
    odd = np.arange(1, FREQUENCIES + 1) % 2
    bits = bits ^ odd if mirrored else bits  # odd waves change sign
    for _ in range(quarters):
        bits = bits.transpose(0, 2, 1) ^ odd[:, None]
    return np.packbits(bits.reshape(len(bits), -1).astype(np.uint8), axis=1).view(">u8")[:, 0].astype(np.uint64)
