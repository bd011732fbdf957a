"""Pictures of folders under check that are alike: copies that were compressed anew, resized or cropped."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlit.data.patients import keys
from fedlit.data.pictures.duplicates import Pair, draw_pairs, near_pairs
from fedlit.data.pictures.store import PartOfStore
from fedlit.data.xrays.checked import LEAK, Check, Problem


def within(result: Check, drawn: Path | None) -> None:
    """Add the pictures of different patients that are alike and not equal."""
    decoded, patients = _decoded(result), keys(result.reading.patients)
    store = PartOfStore(result.thumbs, decoded)
    pairs = [
        pair for pair in near_pairs(store, store, (patients[decoded], patients[decoded]))
        if result.pictures[decoded[pair.one]].digest != result.pictures[decoded[pair.other]].digest
    ]  # fmt: skip
    files = [result.reading.files[row] for row in decoded]
    where = _look_at_them(pairs, (store, store), (files, files), drawn, result.reader.source)
    if same := [f"{files[pair.one]} is {files[pair.other]}" for pair in pairs if pair.same]:
        text = f"{len(same)} pictures are there under more than one patient, compressed anew, resized or cropped{where}: {LEAK}"
        result.add_leak(Problem(text, same))
    if like := sum(not pair.same for pair in pairs):
        result.remarks.append(
            f"{like} pictures of different patients are alike, and may be one picture, cropped{where}"
        )


def between(one: Check, other: Check, drawn: Path | None) -> list[Problem]:
    """Return the pictures of two folders that are alike and not equal."""
    rows = _decoded(one), _decoded(other)
    stores = PartOfStore(one.thumbs, rows[0]), PartOfStore(other.thumbs, rows[1])
    equal = {picture.digest for picture in other.pictures if picture is not None}
    pairs = [pair for pair in near_pairs(*stores) if one.pictures[rows[0][pair.one]].digest not in equal]
    files = tuple([each.reading.files[row] for row in of] for each, of in zip((one, other), rows, strict=True))
    if not pairs:
        return []
    where = _look_at_them(pairs, stores, files, drawn, f"{one.reader.source}-{other.reader.source}")
    places = [f"{files[0][pair.one]} is like {files[1][pair.other]} ({pair.likeness:.3f})" for pair in pairs]
    text = (
        f"{len(pairs)} pictures of {one.reader.root} are like one of {other.reader.root}, {sum(pair.same for pair in pairs)} "
        f"of them surely the same, compressed anew, resized or cropped{where}: {LEAK}"
    )
    return [Problem(text, places)]


def _look_at_them(pairs: Sequence[Pair], stores: tuple, names: tuple, drawn: Path | None, of: str) -> str:
    """Draw pairs, and return where to look at them, in words."""
    if not pairs or drawn is None:
        return ""
    return f"; look at {draw_pairs(drawn.with_name(f'{drawn.stem}-{of}{drawn.suffix}'), pairs, stores, names)}"


def _decoded(result: Check) -> np.ndarray:
    """Return the rows whose pictures were decoded and show something."""
    return np.array([row for row, p in enumerate(result.pictures) if p is not None and p.digest], dtype=np.int64)
