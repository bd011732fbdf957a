"""Pictures of two stores that are one picture, compressed anew, resized, cropped or brightened; and pairs to look at."""

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from fedlit.core.files import whole
from fedlit.data.likeness import perceptual_hashes
from fedlit.data.pixels import SIDE

DISTANCE = 8
"""Most bits in which the hashes of a pair differ. Of 1,000 X-rays of NIH (499,500 pairs) 28 pairs have as few, and of their
copies cropped by 2% have 99.4%, of copies compressed (JPEG, quality 50 to 95) or resized by half all."""

SAME, LIKE = 0.9, 0.7
"""Likeness from which on a pair is one picture, and from which on it is shown. Compressed and resized copies of these X-rays have
0.99 and more, copies cropped by 2% 0.78 and more (median 0.91). Of pairs of different patients none has 0.7."""

CANDIDATES = 100_000
"""Pairs whose pictures are compared; the distance is smaller where there are more."""

BLOCK, BLUR = 4096, 9
SHOWN, EDGE = 12, 192


class Store(Protocol):
    """Pictures with their hashes, such as ``ImageStore``."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: np.ndarray) -> torch.Tensor: ...

    def hashes(self) -> np.ndarray:
        """Return the perceptual hash of each picture, [N] uint64."""
        ...


@dataclass(frozen=True)
class Pair:
    """Two pictures that are alike.

    Attributes:
        one: Row in the first store.
        other: Row in the second one.
        distance: Bits in which their hashes differ.
        likeness: Correlation of their details, at most 1.
    """

    one: int
    other: int
    distance: int
    likeness: float

    @property
    def same(self) -> bool:
        """Whether they are one picture; else somebody should look at them."""
        return self.likeness >= SAME


class Thumbs:
    """Small pictures in a file that is gone with them, and their hashes.

    Args:
        count: Number of pictures, all black at first.
    """

    def __init__(self, count: int) -> None:
        self._hashes = np.zeros(count, dtype=np.uint64)
        file = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the map
        self.pictures = np.memmap(file, np.uint8, "w+", shape=(max(count, 1), 1, SIDE, SIDE))

    def put(self, row: int, pixels: np.ndarray) -> None:
        """Keep a picture, uint8 [1, 64, 64]."""
        self.pictures[row] = pixels
        self._hashes[row] = perceptual_hashes(pixels[None])[0]

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, indices: np.ndarray) -> torch.Tensor:
        """Return a copy of some pictures, uint8 [B, 1, 64, 64]."""
        return torch.from_numpy(np.array(self.pictures[indices]))

    def hashes(self) -> np.ndarray:
        """Return the perceptual hash of each picture, [N] uint64."""
        return self._hashes


class Chosen:
    """Some pictures of a store.

    Args:
        store: The store.
        rows: Rows of it, [n].
    """

    def __init__(self, store: Store, rows: np.ndarray) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, indices: np.ndarray) -> torch.Tensor:
        """Return a copy of some pictures, uint8 [B, channels, height, width]."""
        return self._store[self._rows[indices]]

    def hashes(self) -> np.ndarray:
        """Return the perceptual hash of each picture, [n] uint64."""
        return self._store.hashes()[self._rows]


def cached_pairs(folder: Path, one: Store, other: Store, names: tuple[str, str]) -> list[Pair]:
    """Return ``near_pairs`` of two stores with these names, from the cache folder where they were looked for before."""
    file = pairs_file(folder, *names).with_suffix(".npy")
    try:
        rows = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        rows = np.array([astuple(pair) for pair in near_pairs(one, other)], dtype=np.float64).reshape(-1, 4)
        with whole(file) as draft, draft.open("wb") as opened:
            np.save(opened, rows)
    return [Pair(int(a), int(b), int(distance), float(likeness)) for a, b, distance, likeness in rows]


def near_pairs(one: Store, other: Store, apart: tuple[np.ndarray, np.ndarray] | None = None) -> list[Pair]:
    """Return the pairs of alike pictures of two stores, the best one for each picture of the first, best first.

    Args:
        one: The first store.
        other: The second one; it may be the first.
        apart: What the pictures of each store must differ in, such as patients, [N] and [M].
    """
    pairs = _candidates(one.hashes(), other.hashes(), one is other, apart)
    likeness = np.empty(len(pairs))
    for start in range(0, len(pairs), 512):
        part = pairs[start : start + 512]
        likeness[start : start + 512] = (_details(one[part[:, 0]]) * _details(other[part[:, 1]])).sum(axis=1)
    found: dict[int, Pair] = {}
    for row in np.argsort(-likeness.round(6), kind="stable").tolist():
        first, second, distance = pairs[row].tolist()
        if likeness[row] < LIKE:
            break
        found.setdefault(first, Pair(first, second, distance, float(likeness[row])))
    return list(found.values())


def _candidates(
    one: np.ndarray, other: np.ndarray, itself: bool, apart: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray:
    """Return pairs whose hashes are near, [P, 3] int64: two rows and the distance."""
    # As plus and minus ones, whose product is 64 less twice the distance: matrices are faster than counting bits.
    left, right = (torch.from_numpy(_signs(hashes)) for hashes in (one, other))
    most, found, count = DISTANCE, [np.empty((0, 3), dtype=np.int64)], 0
    for start in range(0, len(left), BLOCK):
        product = left[start : start + BLOCK] @ right.T
        rows, columns = (product >= 64 - 2 * most).nonzero(as_tuple=True)
        distance = ((64 - product[rows, columns]) / 2).round()
        block = torch.stack([rows + start, columns, distance.long()], dim=1).numpy()
        if itself:
            block = block[block[:, 0] < block[:, 1]]
        if apart is not None:
            block = block[apart[0][block[:, 0]] != apart[1][block[:, 1]]]
        found.append(block)
        count += len(block)
        while count > CANDIDATES and most > 0:
            most -= 1
            found = [each[each[:, 2] <= most] for each in found]
            count = sum(map(len, found))
    return np.concatenate(found)[:CANDIDATES]


def _signs(hashes: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(len(hashes), 8), axis=1)
    return bits.astype(np.float32) * 2 - 1


def _details(pictures: torch.Tensor) -> np.ndarray:
    """Return what pictures have beside their blurred selves, at 64 x 64, [N, 4096] with length 1; 0 where that is nothing."""
    small = adaptive_avg_pool2d(pictures.float().mean(dim=1, keepdim=True), SIDE)
    details = (small - avg_pool2d(small, BLUR, 1, BLUR // 2, count_include_pad=False)).flatten(1).double().numpy()
    details -= details.mean(axis=1, keepdims=True)
    return details / np.maximum(np.linalg.norm(details, axis=1, keepdims=True), 1e-6)


def draw_pairs(
    file: Path, pairs: Sequence[Pair], stores: tuple[Store, Store], names: tuple[Sequence[str], Sequence[str]]
) -> Path:
    """Draw the first pairs side by side with their names, as a PNG file, and return its path."""
    pairs = pairs[:SHOWN]
    sheet = Image.new("L", (2 * EDGE + 12, len(pairs) * (EDGE + 34) + 4), 255)
    pen = ImageDraw.Draw(sheet)
    for number, pair in enumerate(pairs):
        top = 4 + number * (EDGE + 34)
        for side, (store, row) in enumerate(zip(stores, (pair.one, pair.other), strict=True)):
            picture = store[np.array([row])][0].float().mean(dim=0).round().byte().numpy()
            left = 4 + side * (EDGE + 4)
            sheet.paste(Image.fromarray(picture).resize((EDGE, EDGE)), (left, top))
            name = str(names[side][row]).encode("ascii", "replace").decode()
            pen.text((left, top + EDGE + 2), name[-31:], fill=0)
        pen.text((4, top + EDGE + 15), f"likeness {pair.likeness:.3f}, {pair.distance} of 64 bits differ", fill=90)
    file.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(file)
    return file


def pairs_file(folder: Path, *names: str) -> Path:
    """Return a path for the picture of the pairs of two data sets, always the same for these names."""
    return folder / f"pairs-{hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:12]}.png"
