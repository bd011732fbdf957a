"""Near-duplicates in image stores: recompressed, resized, cropped, mirrored or rotated copies, and the leaks."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from PIL import Image, ImageDraw

from fedlit.core.errors import DataError
from fedlit.core.system.files import whole
from fedlit.data.patients import keys
from fedlit.data.pictures.hashes import PARTS, shrunk, turned
from fedlit.data.pictures.pixels import SIDE
from fedlit.data.records import Records, listed

if TYPE_CHECKING:  # imported only if images are compared, because the import takes seconds
    from torch import Tensor

Duplicates = Literal["refuse", "allow"]
"""Rule for copies that leak: an error or a warning."""

DISTANCE = 8
"""Largest number of differing bits of the hashes of a pair; if one image is inverted, of equal bits."""

SAME, LIKE = 0.9, 0.65
"""Smallest correlations of a pair that counts as one image, and of near-duplicates. Of 499,500 pairs of 1,000 X-rays of
NIH, none of different patients reaches 0.65; `tests/benchmarks/duplicates.py` measures which copies do."""

CANDIDATES = 50_000
"""Largest number of pairs of each view whose images are compared; with more pairs, the distance is reduced."""

VIEWS = (
    (0, 0, 0, False), (1, 1, 0, False), (1, 1, 0, True), (1, 1, 1, False), (1, 1, 2, False), (1, 1, 3, False),
    (2, 1, 0, False), (1, 2, 0, False), (3, 1, 0, False), (1, 3, 0, False),
)  # fmt: skip
"""Comparisons of two images: the ``PARTS`` of each, the first one's quarter turns, and True if it is mirrored."""

ROWS, COLUMNS, BLUR = 64, 4096, 9
FORMAT = "3"  # raise it when the search changes, so that cached pairs are not reused
SHOWN, EDGE = 12, 192


class Store(Protocol):
    """Images with their hashes, such as ``ImageStore``."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: np.ndarray) -> "Tensor": ...

    def hashes(self) -> np.ndarray:
        """Return the perceptual hashes of each image, [N, 4] uint64."""
        ...


@dataclass(frozen=True)
class Pair:
    """Two near-duplicates.

    Attributes:
        one: Row in the first store.
        other: Row in the second store.
        distance: Number of differing bits of their hashes, in the view in which they are most similar.
        likeness: Correlation of their details, at most 1.
    """

    one: int
    other: int
    distance: int
    likeness: float

    @property
    def same(self) -> bool:
        """True if the pair counts as one image; otherwise a person should inspect it."""
        return self.likeness >= SAME


def shared(patients: np.ndarray, names: np.ndarray) -> str:
    """Return what is wrong with equal images: they have several patients, or nothing names patients."""
    return "are equal to others" if np.array_equal(patients, names) else "belong to more than one patient"


def notes_of_copies(cache: Path, duplicates: Duplicates, names: Sequence[str], read: Sequence[Records]) -> list[str]:
    """Search a source for images of two patients, or two sources for common images; return notes about near-duplicates.

    Args:
        cache: The cache folder, also for the figure of the pairs.
        duplicates: Rule for copies.
        names: Names of one or two sources.
        read: Their records.

    Raises:
        DataError: There are copies, and ``duplicates`` is ``refuse``.
    """
    one, other, apart = read[0], read[-1], None
    stores, images = (one.store, other.store), (one.names, other.names)
    files = [one.store.path.name, other.store.path.name]
    what = f"are in {names[-1]!r} too"
    leak = (
        "the same patients would be in the training of one site and in the test of another (for example, RSNA "
        "Pneumonia and SIIM Pneumothorax are taken from NIH ChestX-ray14)"
    )
    if len(names) == 1:
        apart = (keys(one.patients),) * 2
        files[1] = hashlib.sha256("\0".join(apart[0].tolist()).encode()).hexdigest()[:24]
        what = shared(one.patients, one.names)
        leak = "one person's images would be in training and test, or at two sites"
    pairs = cached_pairs(cache, *stores, tuple(files), apart)
    if not pairs:
        return []
    figure, notes = draw_pairs(pairs_file(cache, *names), pairs, stores, images), []
    same = [f"{images[0][pair.one]} and {images[1][pair.other]}" for pair in pairs if pair.same]
    if like := len(pairs) - len(same):
        of = " and ".join(map(repr, names))
        notes = [f"{like} images of {of} are near-duplicates, perhaps cropped copies: see {figure}"]
        warnings.warn(notes[0], stacklevel=5)
    if same:
        message = (
            f"{len(same)} images of {names[0]!r} {what}, the first are {listed(same, 2)}, perhaps recompressed or "
            f"resized (see {figure}): {leak}"
        )
        if duplicates == "refuse":
            raise DataError(f"{message}. Remove one of each, or set data.duplicates to allow.")
        warnings.warn(message, stacklevel=5)
    return notes


def cached_pairs(
    folder: Path, one: Store, other: Store, names: tuple[str, str], apart: tuple[np.ndarray, np.ndarray] | None = None
) -> list[Pair]:
    """Return ``near_pairs`` of two stores with these names, from the cache folder if they were searched before."""
    file = pairs_file(folder, FORMAT, *names).with_suffix(".npy")
    try:
        rows = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        rows = np.array([astuple(pair) for pair in near_pairs(one, other, apart)], dtype=np.float64).reshape(-1, 4)
        with whole(file) as draft, draft.open("wb") as opened:
            np.save(opened, rows)
    return [Pair(int(a), int(b), int(distance), float(likeness)) for a, b, distance, likeness in rows]


def near_pairs(one: Store, other: Store, apart: tuple[np.ndarray, np.ndarray] | None = None) -> list[Pair]:
    """Return the near-duplicates in two stores, or in one: the best pair for each image of the first, best first.

    The images of a pair differ in the values ``apart``, such as patients, [N] and [M].
    """
    parts, ours, others = [], one.hashes(), other.hashes()
    for view, (mine, theirs, quarters, mirrored) in enumerate(VIEWS):
        pairs = _candidates(turned(ours[:, mine], quarters, mirrored), others[:, theirs], one is other, apart)
        parts.append(np.column_stack([pairs, np.full(len(pairs), view)]))
    pairs, likeness = np.concatenate(parts), []
    for block in (each[start : start + 512] for each in parts for start in range(0, len(each), 512)):
        mine, theirs, quarters, mirrored = VIEWS[block[0, 3]]
        small = shrunk(one[block[:, 0]], SIDE, [PARTS[mine]])[:, 0]
        small = np.rot90(small[..., ::-1] if mirrored else small, quarters, axes=(1, 2))
        correlation = (_details(small) * _details(shrunk(other[block[:, 1]], SIDE, [PARTS[theirs]])[:, 0])).sum(axis=1)
        likeness.append(np.where(block[:, 2] > 32, -correlation, correlation))
    likeness = np.concatenate([*likeness, np.empty(0)])
    best: dict[int, Pair] = {}
    for row in np.argsort(-likeness.round(6), kind="stable").tolist():
        first, second, distance, _ = pairs[row].tolist()
        if likeness[row] < LIKE:
            break
        best.setdefault(first, Pair(first, second, min(distance, 64 - distance), float(likeness[row])))
    return list(best.values())


def _candidates(
    one: np.ndarray, other: np.ndarray, itself: bool, apart: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray:
    """Return pairs whose hashes, [N] and [M], are similar or opposite, [P, 3] int64: two rows and the distance."""
    most, blocks, count = DISTANCE, [np.empty((0, 3), dtype=np.int64)], 0
    differ, bits = np.empty((ROWS, COLUMNS), np.uint64), np.empty((ROWS, COLUMNS), np.uint8)
    for row, column in product(range(0, len(one), ROWS), range(0, len(other), COLUMNS)):
        if itself and column + COLUMNS <= row:
            continue
        left, right = one[row : row + ROWS, None], other[column : column + COLUMNS]
        place = slice(len(left)), slice(len(right))
        distance = np.bitwise_count(np.bitwise_xor(left, right, out=differ[place]), out=bits[place])
        if distance.min() > most and distance.max() < 64 - most:
            continue
        rows, columns = np.nonzero((np.minimum(distance, 64 - distance) <= most) & (left != 0) & (right != 0))
        block = np.stack([rows + row, columns + column, distance[rows, columns]], axis=1).astype(np.int64)
        if itself:
            block = block[block[:, 0] < block[:, 1]]
        if apart is not None:
            block = block[apart[0][block[:, 0]] != apart[1][block[:, 1]]]
        blocks.append(block)
        count += len(block)
        while count > CANDIDATES and most > 0:
            most -= 1
            blocks = [each[np.minimum(each[:, 2], 64 - each[:, 2]) <= most] for each in blocks]
            count = sum(map(len, blocks))
    return np.concatenate(blocks)[:CANDIDATES]


def _details(small: np.ndarray) -> np.ndarray:
    """Return images [N, 64, 64] minus their blurred versions as vectors, [N, 4096], of length 1 or 0."""
    import torch
    from torch.nn.functional import avg_pool2d

    pictures = torch.from_numpy(small.astype(np.float32))[:, None]
    details = (pictures - avg_pool2d(pictures, BLUR, 1, BLUR // 2, count_include_pad=False)).flatten(1).double().numpy()
    details -= details.mean(axis=1, keepdims=True)
    return details / np.maximum(np.linalg.norm(details, axis=1, keepdims=True), 1e-6)


def draw_pairs(
    file: Path, pairs: Sequence[Pair], stores: tuple[Store, Store], names: tuple[Sequence[str], Sequence[str]]
) -> Path:
    """Draw the first pairs side by side with their names into a PNG file, and return its path."""
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
    """Return the path of the figure of the pairs of two data sets, always the same for these names."""
    return folder / f"pairs-{hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:12]}.png"
