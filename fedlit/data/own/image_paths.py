"""Search for the columns of a table that name the images below a folder."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from fedlit.data.pictures.dicom import has_mark
from fedlit.data.spelling import SUFFIXES, plain, stem_of

PLACE = re.compile(r"\{([^{}]+)\}")
"""A column in a pattern of paths, such as ``{StudyUID}``."""

ROWS, FILES, PATTERNS = 500, 300_000, 400
"""Limits: sampled rows, files, and tried patterns."""

FEW = 0.1
"""Smallest share of the rows whose image a pattern must find."""


def images_below(folder: Path) -> Iterator[str]:
    """Yield the path of each image below a folder, with slashes, in no order; at most ``FILES`` of them."""
    count = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = os.path.relpath(parent, folder).replace(os.sep, "/")
        for name in names:
            suffix = os.path.splitext(name)[1].strip(".0123456789")  # a number after a dot is a part of a UID
            if name.lower().endswith(SUFFIXES) or (not suffix and has_mark(Path(parent, name))):
                yield name if relative == "." else f"{relative}/{name}"
                count += 1
                if count == FILES:
                    return


def image_pattern(rows: pd.DataFrame, files: Sequence[str]) -> tuple[str, int]:
    """Return the column, or the pattern of columns, that names a different file in most rows, and the number of files.

    A path may lack its suffix, and may begin with folders that all files share.
    """
    files = [plain(file) for file in files]
    counts = Counter(os.path.dirname(file) for file in files)
    known = {*files, *map(stem_of, files), *(f"{folder}/*" for folder, images in counts.items() if images == 1)}
    sample = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int))]
    scored = []
    for pattern in filter(PLACE.search, _patterns(sample, files)):
        hits = len(known.intersection(map(plain, paths_of(pattern, sample))))  # equal paths of two rows count once
        scored.append((-hits, "*" in pattern, len(pattern), pattern))
    most, *_, pattern = min(scored, default=(0, ""))
    if -most < FEW * len(sample):
        return "", 0
    hits = len(known.intersection(map(plain, paths_of(pattern, rows))))
    column = PLACE.fullmatch(pattern)
    return column[1] if column else pattern, hits


def columns_of(image: str) -> list[str]:
    """Return the columns of a pattern of paths such as ``{StudyUID}/{View}.dcm``, or the column that is named."""
    return PLACE.findall(image) or [image]


def paths_of(image: str, rows: pd.DataFrame) -> list[str]:
    """Return the path of each row's image, with slashes, given a column or a pattern of columns."""
    pattern = PLACE.sub("{}", image) if PLACE.search(image) else "{}"
    cells = [rows[column] for column in columns_of(image)]
    # Windows writes backslashes. A path that begins with a slash leads out of the folder, and is an error later.
    return [os.path.normpath(pattern.format(*row).replace("\\", "/")) for row in zip(*cells, strict=True)]


def why_no_image(rows: pd.DataFrame, files: Sequence[str]) -> str:
    """Return a reason why a column does not quite name the images, or ""."""
    names = {plain(os.path.basename(file)) for file in files}
    bare = {stem_of(name).lstrip("0"): name for name in names if name[0] == "0"}
    for column, cells in rows.items():
        for cell in cells:
            path = cell.replace("\\", "/")
            if "/" in path and plain(path.rpartition("/")[2]) in names:
                where = "paths of another machine" if path[1:2] == ":" else "names of these files in other folders"
                return f"{column!r} holds {where}, such as {cell!r}: keep the part below --root, such as {files[0]!r}"
            if cell.strip("0") and cell in bare:
                return f"{column!r} has lost zeros: {cell!r} is the file {bare[cell]!r}; write the column as text"
    return ""


def _patterns(rows: pd.DataFrame, files: Sequence[str]) -> Iterator[str]:
    values = {name: set(cells) - {""} for name, cells in rows.items()}
    yield from (f"{{{name}}}" for name in values)
    depths = Counter(file.count("/") for file in files)
    for depth, _ in depths.most_common(2):
        parts = [file.split("/") for file in files if file.count("/") == depth]
        choices = [_choices([p[level] for p in parts], values, level == depth) for level in range(depth + 1)]
        shared = [next(iter({p[level] for p in parts[:1000]})) for level in range(depth)]
        yield from (f"{'/'.join(shared[:level])}/{{{name}}}" for level in range(1, depth + 1) for name in values)
        for number, levels in enumerate(product(*choices)):
            if number == PATTERNS:
                break
            yield "/".join(levels)


def _choices(parts: Sequence[str], values: dict[str, set[str]], last: bool) -> list[str]:
    """Return the possible sources of a level of a path: a folder that all files share, or columns with its names."""
    names = set(parts)
    if len(names) == 1 and not last:
        return [next(iter(names))]
    stems = {stem_of(part) for part in names} if last else names
    suffix = Counter(os.path.splitext(part)[1] for part in names).most_common(1)[0][0] if last else ""
    mixed = len({os.path.splitext(part)[1] for part in names}) > 1
    choices = []
    for name, cells in values.items():
        if cells & names:
            choices.append((len(cells & names), f"{{{name}}}"))
        elif cells & stems:
            choices.append((len(cells & stems), f"{{{name}}}" + ("" if mixed else suffix)))
    common = [name for name, count in Counter(parts).most_common(3) if count > 1]  # a folder per examination
    return [choice for _, choice in sorted(choices, reverse=True)] + (common or ["*"] if last else [])
