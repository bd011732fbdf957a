"""How well copies of pictures are told from different pictures: the thresholds of ``fedlit.data.near``, on real X-rays.

    python tests/benchmarks/likeness.py FOLDER

FOLDER holds ``images/*.png``, named ``PATIENT_NUMBER.png`` as in NIH ChestX-ray14.
"""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedlit.data import near
from fedlit.data.likeness import perceptual_hashes

SIZE = 224


def jpeg(quality: int) -> Callable[[Image.Image], Image.Image]:
    """Compress a picture anew."""

    def copy(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("L")

    return copy


def cropped(share: float) -> Callable[[Image.Image], Image.Image]:
    """Cut a share of width and height off."""

    def copy(image: Image.Image) -> Image.Image:
        cut = [round(length * share / 2) for length in image.size]
        return image.crop((*cut, image.size[0] - cut[0], image.size[1] - cut[1]))

    return copy


COPIES = {
    "JPEG, quality 95": jpeg(95), "JPEG, quality 75": jpeg(75), "JPEG, quality 50": jpeg(50),
    "resized by half": lambda image: image.resize([length // 2 for length in image.size], Image.Resampling.BICUBIC),
    "cropped by 2%": cropped(0.02), "cropped by 4%": cropped(0.04),
    "brighter by a fifth": lambda image: image.point(lambda value: min(255, int(value * 1.2))),
}  # fmt: skip


def store(images: list[Image.Image]) -> torch.Tensor:
    """Pictures as they are decoded."""
    return torch.from_numpy(
        np.stack([np.asarray(i.resize((SIZE, SIZE), Image.Resampling.BILINEAR))[None] for i in images])
    )


def main(folder: Path) -> None:
    """Print a table."""
    files = sorted((folder / "images").glob("*.png"))
    images = [Image.open(file).convert("L") for file in files]
    pictures = store(images)
    hashes, details = perceptual_hashes(pictures), near._details(pictures)
    patients = np.array([file.name.partition("_")[0] for file in files])
    distance = (64 - near._signs(hashes) @ near._signs(hashes).T) / 2
    one, other = np.triu_indices(len(files), 1)
    close = distance[one, other] <= near.DISTANCE
    one, other = one[close], other[close]
    likeness, apart = (details[one] * details[other]).sum(axis=1), patients[one] != patients[other]
    total = len(files) * (len(files) - 1) // 2
    print(
        f"{len(files)} images, {total:,} pairs: hashes within {near.DISTANCE} bits {close.sum()}, of different patients {apart.sum()}"
    )
    for name, least in (("like", near.LIKE), ("same", near.SAME)):
        print(
            f"  {name} (likeness {least}): {(likeness >= least).sum()}, of different patients {(apart & (likeness >= least)).sum()}"
        )
    for name, copy in COPIES.items():
        copies = store([copy(image) for image in images])
        bits = (64 - (near._signs(hashes) * near._signs(perceptual_hashes(copies))).sum(axis=1)) / 2
        alike = (details * near._details(copies)).sum(axis=1)
        like, same = ((bits <= near.DISTANCE) & (alike >= least) for least in (near.LIKE, near.SAME))
        print(
            f"{name}: found {like.mean():.1%}, as the same {same.mean():.1%}; likeness {alike.min():.3f} to {alike.max():.3f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
