"""Search for the folder of a data set, near the folder that was named."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedlit.core.errors import DataError
from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES

DEPTH, FOLDERS, ENTRIES = 5, 400, 40
"""Searched levels below the named folder, number of folders on all levels, and number of entries of one folder."""

VINBIGDATA = {"image_id", "class_name", "rad_id", "x_min"}


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
