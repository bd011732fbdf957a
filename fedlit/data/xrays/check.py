"""The check of folders of X-rays: facts, problems and near-duplicates that ``fedlit data check`` prints."""

import gzip
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from fedlit.core.errors import ConfigError
from fedlit.data import xrays
from fedlit.data.folders import home, other_than_expected
from fedlit.data.own.class_folders import ClassFolders
from fedlit.data.patients import keys, united
from fedlit.data.pictures.duplicates import Pair, draw_pairs, near_pairs, shared
from fedlit.data.pictures.pixels import SIDE, read_image
from fedlit.data.pictures.store import StoreView, Thumbs
from fedlit.data.records import SPLITS, check_records, contents, listed
from fedlit.data.splits import shared_patients
from fedlit.data.xrays.base import ChestXrays
from fedlit.data.xrays.checked import LEAK, SHOWN, Check, Picture, Problem, inspect_image
from fedlit.data.xrays.reading import Reading

DEEP = 16
"""Number of images with more than 8 bits that are searched for the brightest pixel."""


def readers() -> dict[str, type[ChestXrays]]:
    """Return the readers of chest X-ray data sets that ``fedlit.data.xrays`` exports, by the name of their source."""
    exported = (getattr(xrays, name) for name in xrays.__all__)
    return {cls.source: cls for cls in exported if issubclass(cls, ChestXrays) and cls.source}


def recognise(root: Path, source: str | None = None) -> type[ChestXrays]:
    """Return the reader of a folder by the name of its data set, or else by its files.

    Raises:
        ConfigError: There is no such folder, or it looks like none of the data sets or like several.
    """
    if not root.is_dir():
        raise ConfigError(f"{root}: {'a file, not a folder' if root.is_file() else 'no such folder'}")
    shipped = readers()
    if source is not None:
        return shipped[source]
    if other := other_than_expected(root):
        raise ConfigError(other)
    looks_like = [name for name, reader in shipped.items() if reader.recognises(root)]
    if not looks_like:
        looks_like = [name for name, reader in shipped.items() if home(root, reader.recognises) != root]
    if not looks_like and ClassFolders.recognises(root):
        return ClassFolders
    if len(looks_like) > 1:
        raise ConfigError(f"{root} looks like {' and like '.join(looks_like)}; name one with --source")
    if not looks_like:
        layouts = "\n".join(f"  {name}: {reader.layout}" for name, reader in shipped.items())
        raise ConfigError(f"{root} looks like none of the data sets: found {contents(root)}\n{layouts}")
    return shipped[looks_like[0]]


def check_folder(reader: ChestXrays, decode: bool = False, drawn: Path | None = None) -> Check:
    """Read a data set's label files and inspect each of its images, with a progress bar on the terminal.

    Args:
        reader: The reader of the data set.
        decode: Decode each image, to find damaged pixels, and equal images and near-duplicates of different patients.
        drawn: PNG file for a figure of near-duplicates; by default none is written.

    Raises:
        ConfigError: Images are DICOM files, and pydicom is not installed.
    """
    result = Check(reader, decode)
    try:
        result.reading = reading = reader.read_within()
    except (ValueError, OSError, EOFError) as error:
        message = str(error) if str(reader.root) in str(error) else f"{reader.root}: {error}"
        result.problems.append(Problem(f"{message}\nThe images were not inspected; fix this first"))
        return result
    result.remarks += reading.notes
    if reader.same_person != "exact":
        reading.patients, united_patients = united(reading.patients)
        result.remarks += [united_patients] if united_patients else []
    if decode:
        result.thumbs = Thumbs(len(reading.files))
    result.pictures = _inspect(reading, result.thumbs)
    result.problems += _problems(result)
    if same := _under_two_patients(result):
        result.add_leak(Problem(f"{len(same)} images {shared(reading.patients, reading.names)}: {LEAK}", same))
    result.remarks += _remarks(result)
    _as_fit_would(result)
    if decode:
        _copies_within(result, drawn)
    return result


def compare_folders(checks: Sequence[Check], drawn: Path | None = None) -> list[Problem]:
    """Return the images and patients that two folders share.

    Images are compared by name, and patients if both folders are of the same source. Decoded images are also compared
    by content, which finds recompressed, resized and cropped copies; ``drawn`` is a PNG file for a figure of them.
    """
    problems = []
    for one, other in combinations([result for result in checks if result.reading is not None], 2):
        where = f"{one.reader.root} and {other.reader.root}"
        if names := sorted(set(one.reading.names) & set(other.reading.names)):
            problems.append(Problem(f"{len(names)} images are in {where} under the same name: {LEAK}", names))
        patients = sorted(set(keys(one.reading.patients)) & set(keys(other.reading.patients)))
        if patients and one.reader.source == other.reader.source:
            places = [f"patient {patient}" for patient in patients]
            problems.append(Problem(f"{len(patients)} patients are in {where}: {LEAK}", places))
        mine, theirs = _by_digest(one), _by_digest(other)
        same = [(mine[digest][0], theirs[digest][0]) for digest in mine if digest in theirs]
        if places := [f"{one.reading.files[row]} is {other.reading.files[twin]}" for row, twin in same]:
            problems.append(Problem(f"{len(places)} images are equal in {where}: {LEAK}", places))
        if one.thumbs is not None and other.thumbs is not None:
            problems += _copies_between(one, other, drawn)
    return problems


def _inspect(reading: Reading, thumbs: Thumbs | None) -> list[Picture | None]:
    names, here = reading.files, np.flatnonzero(reading.there).tolist()
    pictures: list[Picture | None] = [None] * len(names)
    doing, terminal = f"{'Opening' if thumbs is None else 'Decoding'} {len(here):,} images", Console(stderr=True)
    # In chunks, because passing a single header on takes longer than reading it.
    size = 256 if thumbs is None else 4
    chunks = [here[start : start + size] for start in range(0, len(here), size)]
    pool = ThreadPoolExecutor()

    def inspected(chunk: list[int]) -> list[Picture]:
        return [inspect_image(names[row], thumbs is not None, thumbs and partial(thumbs.put, row)) for row in chunk]

    try:
        results = pool.map(inspected, chunks)
        bar = track(results, doing, len(chunks), console=terminal, transient=True, disable=not terminal.is_terminal)
        for chunk, opened in zip(chunks, bar, strict=True):
            for row, picture in zip(chunk, opened, strict=True):
                pictures[row] = picture
    finally:
        # Not as a context manager, which would read all other files after Ctrl-C.
        pool.shutdown(cancel_futures=True)
    return pictures


def _problems(result: Check) -> Iterator[Problem]:
    reading, total = result.reading, len(result.pictures)
    names, counts = np.unique(reading.names, return_counts=True)
    if repeated := names[counts > 1].tolist():
        yield Problem(f"{len(repeated)} images are listed more than once", _places(reading, repeated, repeated))
    official = reading.splits is not None and result.reader.official_split
    if official and (patients := shared_patients(reading.patients, reading.splits)):
        advice = "keep each patient in one, or set data.official_split to false"
        yield Problem(f"{len(patients)} patients are in more than one official split: {advice}", patients)
    if absent := [row for row, picture in enumerate(result.pictures) if picture is None]:
        advice = "add them, remove their rows, or set data.missing to drop"
        yield Problem(f"{len(absent)} of {total} images are missing; {advice}", _files(reading, absent))
    if broken := [row for row, picture in enumerate(result.pictures) if picture is not None and picture.problem]:
        text = f"{len(broken)} of {total} images cannot be used; replace them, or remove their rows"
        reasons = [result.pictures[row].problem for row in broken]
        places = [f"{at}: {why}" for at, why in zip(_files(reading, broken), reasons, strict=True)]
        yield Problem(text, places, all_shown=True)
    if reading.lost_sites:
        yield Problem(
            f"no image of {listed(reading.lost_sites)} is left, because all are of other views; choose the views that "
            f"are read in data.views, or leave these hospitals out of the table"
        )


def _under_two_patients(result: Check) -> list[str]:
    reading, places = result.reading, []
    named = not np.array_equal(reading.patients, reading.names)
    for rows in _by_digest(result).values():
        first = {}
        for row in rows:
            first.setdefault(str(reading.patients[row]), row)
        if len(first) > 1:
            places.append(
                " is ".join(f"{reading.files[row]}{f' (patient {patient})' * named}" for patient, row in first.items())
            )
    return places


def _remarks(result: Check) -> Iterator[str]:
    positives = result.labels()["positives"]
    if (positives == 0).any():
        yield f"no image is positive for {', '.join(positives.index[positives == 0])}"
    depths, counts = np.unique([picture.bits for picture in result.opened], return_counts=True)
    if len(depths) > 1:
        numbers = " and ".join(f"{count:,} of {bits} bits" for bits, count in zip(depths, counts, strict=True))
        yield f"images differ in their bit depth: {numbers}; each is scaled by its own"


def _as_fit_would(result: Check) -> None:
    """Divide images as ``fit`` does; add its errors and warnings, and the positives of each client, class and split."""
    reader, reading = copy(result.reader), result.reading.where(result.reading.there)
    own = reader.duplicates is not None  # a run of a public data set may name other clients
    if not len(reading.names):
        return
    deep = [file for file, p in zip(reading.files, filter(None, result.pictures), strict=True) if p.is_deep]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            reader._records = check_records(reader.described(reading, reading.files), reader.same_person == "exact")
            records, owners, kept, hidden = reader.divided()
            if own and (some := deep[:: -(-len(deep) // DEEP) or 1]):
                reader.warn_of_dark(np.stack([read_image(file, SIDE, depth=reader.depth) for file in some]), some)
        except ValueError as error:
            head = str(error).partition(":")[0]
            if own and not any(problem.text.startswith(head) for problem in result.problems):
                result.problems.append(Problem(str(error)))
            elif not own and not result.problems:
                result.remarks.append(f"these images cannot be divided as they are: {error}")
            return
    result.remarks += dict.fromkeys(str(warning.message) for warning in warned if own)
    seen = np.where(hidden, np.nan, records.labels)[kept]
    labels, splits = pd.DataFrame(seen, columns=list(records.classes)), records.splits[kept]
    labels = labels[[name for name in labels if labels[name].notna().any()]]
    parts = [pd.Series(owners[kept], name="client"), pd.Categorical(splits, SPLITS)]
    result.images = labels.groupby(parts, observed=False).size().unstack()
    result.positives = (labels == 1).where(labels.notna()).groupby(parts, observed=False).sum(min_count=1)
    positive = labels == 1
    for split, what in NO_IMAGE.items() if own else ():
        of = positive[splits == split]
        absent = [name for name in positive if positive[name].any() and not of[name].any()]
        if absent or not len(of):
            word = f"of {split} is positive for {', '.join(absent)}" if len(of) else what
            result.remarks.append(f"no image {word}")


NO_IMAGE = {
    "train": "is for training",
    "val": "is for validation, which selects the best round; splits: {train: train_val} takes a part of the training "
    "images",
    "test": "is for the test",
}


def _by_digest(result: Check) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, picture in enumerate(result.pictures):
        if picture is not None and picture.digest:
            rows.setdefault(picture.digest, []).append(row)
    return rows


def _files(reading: Reading, rows: Sequence[int]) -> list[str]:
    return _places(reading, reading.names[rows].tolist(), [reading.files[row] for row in rows])


def _places(reading: Reading, names: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return texts about some images, the first of them with the line of the label file that names the image."""
    lines = _lines(reading, names[:SHOWN])
    return [f"{text} ({lines[name]})" if name in lines else text for name, text in zip(names, texts, strict=True)]


def _lines(reading: Reading, names: Sequence[str]) -> dict[str, str]:
    """Return the label file and line where each name occurs first, for names that occur literally."""
    if reading.lines is not None:
        line_of = dict(zip(reading.names.tolist(), reading.lines.tolist(), strict=True))
        return {name: f"{reading.source.name}, {line_of[name]}" for name in names}
    tables = [reading.source] if reading.source.is_file() else sorted(reading.source.glob("*.csv*"))
    wanted = re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, names)) + r")(?![\w.-])")
    lines: dict[str, str] = {}
    for table in tables:
        opened = gzip.open if table.suffix == ".gz" else open
        with opened(table, "rt", encoding="utf-8-sig", errors="replace") as file:
            for number, line in enumerate(file, 1):
                for name in wanted.findall(line):
                    lines.setdefault(name, f"{table.name}, line {number}")
                if len(lines) == len(set(names)):
                    return lines
    return lines


def _copies_within(result: Check, drawn: Path | None) -> None:
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


def _copies_between(one: Check, other: Check, drawn: Path | None) -> list[Problem]:
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
    return np.array([row for row, p in enumerate(result.pictures) if p is not None and p.digest], dtype=np.int64)
