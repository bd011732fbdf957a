"""Measure how well, and how fast, ``fedlit.data.pictures.duplicates`` finds copies among real X-rays.

    python tests/benchmarks/duplicates.py FOLDER
    python tests/benchmarks/duplicates.py --seconds 112120

FOLDER contains ``images/*.png``, named ``PATIENT_NUMBER.png`` as in NIH ChestX-ray14. ``--seconds`` measures the search
for near pairs among so many random hashes, compared with a product of matrices that finds only equal views.
"""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps

from fedlit.data.pictures import duplicates
from fedlit.data.pictures.hashes import PARTS, perceptual_hashes

SIZE = 224

Copy = Callable[[Image.Image], Image.Image]


def jpeg(quality: int) -> Copy:
    """Compress an image again."""

    def copy(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("L")

    return copy


def cropped(share: float) -> Copy:
    """Remove a share of width and height, half of it on each side."""

    def copy(image: Image.Image) -> Image.Image:
        cut = [round(length * share / 2) for length in image.size]
        return image.crop((*cut, image.size[0] - cut[0], image.size[1] - cut[1]))

    return copy


def boxed(image: Image.Image) -> Image.Image:
    """Burn a white box of a fifth by a tenth into a corner."""
    copy = image.copy()
    ImageDraw.Draw(copy).rectangle((0, 0, image.size[0] // 5, image.size[1] // 10), fill=255)
    return copy


COPIES: dict[str, Copy] = {
    "JPEG, quality 95": jpeg(95), "JPEG, quality 75": jpeg(75), "JPEG, quality 50": jpeg(50),
    "resized by half": lambda image: image.resize([length // 2 for length in image.size], Image.Resampling.BICUBIC),
    "brighter by a fifth": lambda image: image.point(lambda value: min(255, int(value * 1.2))),
    "equalised": ImageOps.equalize,
    "mirrored": ImageOps.mirror, "inverted": ImageOps.invert,
    "turned by 90 degrees": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned by 180 degrees": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "black border of 3%": lambda image: ImageOps.expand(image, round(0.03 * image.size[0]), 0),
    "cropped by 2%": cropped(0.02), "cropped by 4%": cropped(0.04), "cropped by 5%": cropped(0.05),
    "cropped by 7%": cropped(0.07), "cropped by 10%": cropped(0.10),
    "one side cut by 4%": lambda image: image.crop((round(0.04 * image.size[0]), 0, *image.size)),
    "box of 20% x 10%": boxed,
}  # fmt: skip


class Pictures:
    """Images in memory with their hashes."""

    def __init__(self, images: list[Image.Image], size: int = SIZE) -> None:
        resized = [np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))[None] for image in images]
        self.pictures = torch.from_numpy(np.stack(resized))
        self._hashes = perceptual_hashes(self.pictures)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, rows: np.ndarray) -> torch.Tensor:
        return self.pictures[rows]

    def hashes(self) -> np.ndarray:
        """Return the hashes."""
        return self._hashes


def main(folder: Path) -> None:
    """Print recall for each kind of copy, and precision."""
    files = sorted((folder / "images").glob("*.png"))
    images = [Image.open(file).convert("L") for file in files]
    patients = np.array([file.name.partition("_")[0] for file in files])
    for size in (SIZE, duplicates.THUMB):  # of a run, and of `data check --decode`
        ours = Pictures(images, size)
        itself = duplicates.near_pairs(ours, ours)
        apart = [pair for pair in itself if patients[pair.one] != patients[pair.other]]
        print(
            f"{len(files)} images of {size} pixels: {len(itself)} pairs are similar, {len(apart)} of different patients"
        )
        right = total = 0
        for name, copy in COPIES.items():
            pairs = duplicates.near_pairs(ours, Pictures([copy(image) for image in images], size))
            true = [pair for pair in pairs if patients[pair.one] == patients[pair.other]]
            right, total = right + len(true), total + len(pairs)
            same = sum(pair.same for pair in true)
            print(f"  {name}: found {len(true) / len(files):.1%}, as one image {same / len(files):.1%}", flush=True)
        print(f"  precision {right / total:.4f} ({total - right} of {total:,} pairs are of different patients)")


def seconds(count: int) -> None:
    """Print the time to compare ``count`` hashes with each other."""
    hashes = np.random.default_rng(0).integers(1, 2**63, (count, len(PARTS)), dtype=np.uint64)
    signs = torch.from_numpy(np.unpackbits(hashes[:, :1].view(np.uint8), axis=1).astype(np.float32) * 2 - 1)
    start = time.perf_counter()
    for row in range(0, count, 4096):
        (signs[row : row + 4096] @ signs.T >= 48).nonzero()
    before = time.perf_counter() - start
    start = time.perf_counter()
    for mine, theirs, quarters, mirrored in duplicates.VIEWS:
        duplicates._candidates(duplicates.turned(hashes[:, mine], quarters, mirrored), hashes[:, theirs], True, None)
    print(
        f"{count:,} images: {time.perf_counter() - start:.0f} s; a product of matrices for equal views {before:.0f} s"
    )


if __name__ == "__main__":
    seconds(int(sys.argv[2])) if sys.argv[1] == "--seconds" else main(Path(sys.argv[1]))
