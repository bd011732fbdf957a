"""Near-duplicates in checked folders: recompressed, resized or cropped copies."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlit.data.patients import keys
from fedlit.data.pictures.duplicates import Pair, draw_pairs, near_pairs, shared
from fedlit.data.pictures.store import StoreView
from fedlit.data.xrays.checked import LEAK, Check, Problem


def within(result: Check, drawn: Path | None) -> None:
    """Add near-duplicates of different patients that are not equal."""
    decoded, patients = _decoded(result), keys(result.reading.patients)
    store = StoreView([result.thumbs], decoded)
    pairs = [
        pair for pair in near_pairs(store, store, (patients[decoded], patients[decoded]))
        if result.pictures[decoded[pair.one]].digest != result.pictures[decoded[pair.other]].digest
    ]  # fmt: skip
    files = [result.reading.files[row] for row in decoded]
    where = _figure_of(pairs, (store, store), (files, files), drawn, result.reader.source)
    if same := [f"{files[pair.one]} is {files[pair.other]}" for pair in pairs if pair.same]:
        what = shared(result.reading.patients, result.reading.names)
        text = f"{len(same)} images {what}, recompressed, resized or cropped{where}: {LEAK}"
        result.add_leak(Problem(text, same))
    if like := sum(not pair.same for pair in pairs):
        result.remarks.append(f"{like} images of different patients are near-duplicates, perhaps cropped copies{where}")


def between(one: Check, other: Check, drawn: Path | None) -> list[Problem]:
    """Return the near-duplicates in two folders that are not equal."""
    rows = _decoded(one), _decoded(other)
    stores = StoreView([one.thumbs], rows[0]), StoreView([other.thumbs], rows[1])
    equal = {picture.digest for picture in other.pictures if picture is not None}
    pairs = [pair for pair in near_pairs(*stores) if one.pictures[rows[0][pair.one]].digest not in equal]
    files = tuple([each.reading.files[row] for row in of] for each, of in zip((one, other), rows, strict=True))
    if not pairs:
        return []
    where = _figure_of(pairs, stores, files, drawn, f"{one.reader.source}-{other.reader.source}")
    places = [f"{files[0][pair.one]} is like {files[1][pair.other]} ({pair.likeness:.3f})" for pair in pairs]
    text = (
        f"{len(pairs)} images of {one.reader.root} are near-duplicates of images of {other.reader.root}, "
        f"{sum(pair.same for pair in pairs)} of them surely copies, recompressed, resized or cropped{where}: {LEAK}"
    )
    return [Problem(text, places)]


def _figure_of(pairs: Sequence[Pair], stores: tuple, names: tuple, drawn: Path | None, of: str) -> str:
    """Draw pairs, and return a reference to the figure as text, or "" if there is none."""
    if not pairs or drawn is None:
        return ""
    return f"; see {draw_pairs(drawn.with_name(f'{drawn.stem}-{of}{drawn.suffix}'), pairs, stores, names)}"


def _decoded(result: Check) -> np.ndarray:
    """Return the rows of the images that were decoded and show something."""
    return np.array([row for row, p in enumerate(result.pictures) if p is not None and p.digest], dtype=np.int64)
