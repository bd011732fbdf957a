"""The folder of a data set: near the folder that was named, or below one with many data sets."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedlit import data
from fedlit.core.errors import ConfigError, DataError
from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES

HOLDS = {
    "CIFAR10": ("cifar-10-batches-py", "train-*.parquet"),
    "CIFAR100": ("cifar-100-python", "train-*.parquet"),
    "STL10": ("stl10_binary",),
    "FashionMNIST": ("FashionMNIST/raw",),
    "ImageNet": ("train/n*",),
    "CATvsDOG": ("train/cat.*.jpg", "PetImages/Cat"),
    "Melanoma": ("ISIC_2020_Training_GroundTruth*.csv", "jpeg/train"),
    "FedHeartDisease": ("processed.cleveland.data",),
    "FedISIC2019": ("train_test_split",),
}
"""Patterns, one of which the folder of a data set matches. Readers of chest X-rays recognise their folders."""

DEPTH, FOLDERS, ENTRIES = 5, 400, 40
"""Searched levels below the named folder, number of folders on all levels, and number of entries of one folder."""

VINBIGDATA = {"image_id", "class_name", "rad_id", "x_min"}


def found_below(root: Path, path: str, config: Mapping[str, Any], key: str) -> Path:
    """Return the folder of a data set: ``root/path``, or else the only one that holds it among the root's folders.

    The folder is the value of a key of ``data`` in the configuration, such as ``root`` or ``sources.NIH.root``.

    Raises:
        ConfigError: Several folders hold the data set.
    """
    named, name = root / path, _class_of(config, key)
    holds = _holds(name)
    if not root.is_dir() or holds is None or (named.is_dir() and holds(named)):
        return named
    folders = [folder for folder in (root, *sorted(root.iterdir())) if folder.is_dir() and holds(folder)]
    if len(folders) > 1:
        found = ", ".join(map(str, folders))
        raise ConfigError(f"--root {root}: expected one folder with {name}, found {found}; name one of them")
    return folders[0] if folders else named


def _class_of(config: Mapping[str, Any], key: str) -> str:
    """Return the name of the class of the data, or of the source, that has the key."""
    section = config.get("data") or {}
    for name in key.split(".")[:-1]:
        section = (section.get("init_args", section) or {}).get(name) or {}
    return str(section.get("class_path", "")).rpartition(".")[2] if isinstance(section, Mapping) else ""


def _holds(name: str) -> Callable[[Path], bool] | None:
    if patterns := HOLDS.get(name):
        return lambda folder: any(any(folder.glob(pattern)) for pattern in patterns)
    return getattr(getattr(data, name, None), "recognises", None)


def home(root: Path, recognises: Callable[[Path], bool]) -> Path:
    """Return the folder of a data set: the named folder, the only one below it, or one above a folder of images.

    The first level below that has such a folder is used. If no folder holds the data set, the named one is returned, so
    that the caller can raise its own error.

    Args:
        root: The named folder.
        recognises: A function that returns True if a folder holds the data set.

    Raises:
        DataError: Several folders of a level hold the data set.
    """
    if not root.is_dir() or recognises(root):
        return root
    levels: dict[int, list[Path]] = {}
    for depth, folder in _below(root):
        if levels and depth > min(levels):
            break
        if recognises(folder):
            levels.setdefault(depth, []).append(folder)
    holders = levels[min(levels)] if levels else []
    if len(holders) > 1:
        raise DataError(f"{root}: several folders hold the data set: {listed(holders)}. Name one of them as data.root")
    above = list(root.resolve().parents)[:2] if not holders and _holds_images(root) else []
    return next((folder for folder in [*holders, *above] if recognises(folder)), root)


def _holds_images(root: Path) -> bool:
    names = (name for _, folder in [(0, root), *_below(root)] for name in os.listdir(folder)[:ENTRIES])
    return any(name.lower().endswith(SUFFIXES) for name in names)


def _below(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield folders below a folder with their level, level by level; not all if there are many."""
    waiting, seen = [(0, root)], 0
    while waiting:
        depth, folder = waiting.pop(0)
        if depth == DEPTH:
            return
        with os.scandir(folder) as entries:
            inside = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        for name in sorted(inside)[:ENTRIES]:
            yield depth + 1, folder / name
            waiting.append((depth + 1, folder / name))
            seen += 1
            if seen == FOLDERS:
                return


def header(file: Path) -> set[str]:
    """Return the names in the first line of a CSV file; an empty set if it cannot be read."""
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as opened:
            return {name.strip().strip('"') for name in opened.readline(10_000).split(",")}
    except OSError:
        return set()


def other_than_expected(root: Path) -> str:
    """Return an error message if a folder holds a known data set without a reader, or ""."""
    if root.is_dir() and header(root / "train.csv") >= VINBIGDATA:
        return (
            f"{root} is Kaggle's VinBigData, with boxes of 14 findings in train.csv, not VinDr-CXR, whose "
            "annotations/image_labels_train.csv (physionet.org/content/vindr-cxr) has 27 labels of each image. Use "
            "VinDr-CXR, or convert the boxes to a table with one row per image, for ImageTable"
        )
    return ""
