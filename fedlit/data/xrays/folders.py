"""Where a data set lies, if the folder that was named is one level off, or holds another data set."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES

DEPTH, FOLDERS, BESIDE = 5, 400, 40
"""Levels below the named folder, folders of all levels, and folders of one that are looked at."""

VINBIGDATA = {"image_id", "class_name", "rad_id", "x_min"}


def home(root: Path, recognises: Callable[[Path], bool]) -> Path:
    """Return the folder that holds a data set: the one that was named, or the only one below it, or one above it.

    One above it counts where the named one holds images. The first level that has such a folder decides. Where there is none the named one is returned, for a message of its own.

    Args:
        root: The folder that was named.
        recognises: Tells whether a folder holds the data set.

    Raises:
        ValueError: Several folders of a level hold the data set.
    """
    if not root.is_dir() or recognises(root):
        return root
    levels: dict[int, list[Path]] = {}
    for depth, folder in _below(root):
        if levels and depth > min(levels):
            break
        if recognises(folder):
            levels.setdefault(depth, []).append(folder)
    found = levels[min(levels)] if levels else []
    if len(found) > 1:
        raise ValueError(f"{root}: several folders hold the data set: {listed(found)}. Name one of them as data.root")
    above = list(root.resolve().parents)[:2] if not found and _holds_images(root) else []
    return next((folder for folder in [*found, *above] if recognises(folder)), root)


def _holds_images(root: Path) -> bool:
    """Return whether an image is among the first files below a folder."""
    names = (name for _, folder in [(0, root), *_below(root)] for name in os.listdir(folder)[:BESIDE])
    return any(name.lower().endswith(SUFFIXES) for name in names)


def _below(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield folders below a folder with their level, level by level; not all where there are many, as of patients."""
    waiting, seen = [(0, root)], 0
    while waiting:
        depth, folder = waiting.pop(0)
        if depth == DEPTH:
            return
        with os.scandir(folder) as entries:
            inside = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        for name in sorted(inside)[:BESIDE]:
            yield depth + 1, folder / name
            waiting.append((depth + 1, folder / name))
            seen += 1
            if seen == FOLDERS:
                return


def header(file: Path) -> set[str]:
    """Return the names in the first line of a CSV file; none where it cannot be read."""
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as opened:
            return {name.strip().strip('"') for name in opened.readline(10_000).split(",")}
    except OSError:
        return set()


def other_than_expected(root: Path) -> str:
    """Name the data set that a folder holds where fedlit has no reader for it; "" where it is none that is known."""
    if root.is_dir() and header(root / "train.csv") >= VINBIGDATA:
        return (
            f"{root} is VinBigData, as Kaggle has it: boxes of 14 findings in train.csv, not VinDr-CXR, whose "
            "annotations/image_labels_train.csv (physionet.org/content/vindr-cxr) has 27 labels of each image. fedlit reads "
            "the labels of VinDr-CXR; a table with a row an image, made of the boxes, is read by ImageTable"
        )
    return ""
