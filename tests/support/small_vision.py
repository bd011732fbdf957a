"""Small copies of STL-10 and FashionMNIST in torchvision's layouts."""

import struct
from pathlib import Path

import numpy as np

from fedlit.data.binary.vision import CIFAR10_CATEGORIES

TRAIN, TEST = 40, 20


def pictures(count: int, seed: int, shape: tuple[int, ...] = (32, 32, 3)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_stl(root: Path) -> tuple[np.ndarray, list[int]]:
    folder = root / "stl10_binary"
    folder.mkdir()
    pixels = pictures(TRAIN + TEST, 1, (96, 96, 3))
    numbers = [row % 10 for row in range(TRAIN + TEST)]
    for part, rows in (("train", slice(0, TRAIN)), ("test", slice(TRAIN, None)), ("unlabeled", slice(0, 2))):
        # STL-10 stores its pictures column by column, and counts from 1.
        pixels[rows].transpose(0, 3, 2, 1).tofile(folder / f"{part}_X.bin")
        (np.array(numbers[rows], dtype=np.uint8) + 1).tofile(folder / f"{part}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(CIFAR10_CATEGORIES))
    return pixels, numbers


def write_fashion_mnist(root: Path) -> tuple[np.ndarray, list[int]]:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = pictures(TRAIN + TEST, 2, (28, 28))
    numbers = [row % 10 for row in range(TRAIN + TEST)]
    for part, rows in (("train", slice(0, TRAIN)), ("t10k", slice(TRAIN, None))):
        count = len(numbers[rows])
        header = struct.pack(">iiii", 0x803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels[rows].tobytes())
        header = struct.pack(">ii", 0x801, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(numbers[rows]))
    return pixels, numbers
