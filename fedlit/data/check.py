"""What a folder of chest X-rays holds, and what is wrong with it: the facts of ``fedlit data check``."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

import fedlit.data
from fedlit.data.dicom import SUFFIXES
from fedlit.data.images import read_image
from fedlit.data.labels import UNCERTAIN, harmonised_names
from fedlit.data.records import listed
from fedlit.data.xrays import ChestXrays, Reading, present
from fedlit.errors import ConfigError

SHOWN = 5
"""Places that are named of a problem; the others are counted."""

LEAK = (
    "a patient in two splits or at two sites leaks; RSNA Pneumonia and SIIM Pneumothorax images are NIH images. "
    "Leave one of each out"
)

_DIGEST_SIZE = 64
_KINDS = {
    "1": (1, "grey"),
    "L": (8, "grey"),
    "LA": (8, "grey with alpha"),
    "P": (8, "palette"),
    "I": (16, "grey"),  # some versions of Pillow open a PNG of 16 bits so
    "I;16": (16, "grey"),
    "I;16B": (16, "grey"),
    "F": (32, "floating point"),
}


@dataclass(frozen=True)
class Picture:
    """An image file as its header, or its decoding, shows it.

    Attributes:
        format: of the file, such as PNG; "" where it cannot be opened, like the rest.
        bits: of a pixel and channel.
        colour: what the channels are, such as grey.
        size: width and height in pixels.
        digest: of the pixels at a small size, equal for equal pictures; "" where nothing was decoded.
        problem: why the file is of no use, or "".
    """

    format: str = ""
    bits: int = 0
    colour: str = ""
    size: tuple[int, int] = (0, 0)
    digest: str = ""
    problem: str = ""

    @property
    def kind(self) -> str:
        return f"{self.format}, {self.bits}-bit {self.colour}"


@dataclass(frozen=True)
class LabelCount:
    """How many images of a data set have a label, and in which way.

    Attributes:
        label: of the source.
        harmonised: the class that it is, or is a part of, as in ``fedlit list labels``; "" where there is none.
    """

    label: str
    harmonised: str
    positives: int
    negatives: int
    uncertain: int
    blank: int

    @property
    def prevalence(self) -> float:
        """Share of positives among all images."""
        return self.positives / max(self.positives + self.negatives + self.uncertain + self.blank, 1)


@dataclass(frozen=True)
class Problem:
    """Something wrong, and the places where it is."""

    text: str
    places: Sequence[str] = ()


@dataclass
class Check:
    """What was found in a folder.

    Attributes:
        reader: of the data set.
        decoded: whether the images were decoded, not only opened.
        reading: what the label files say; None where they cannot be read.
        pictures: one for each image of the reading; None where it is missing.
        problems: what is wrong.
        remarks: what is not wrong, but good to know.
    """

    reader: ChestXrays
    decoded: bool = False
    reading: Reading | None = None
    pictures: list[Picture | None] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def opened(self) -> list[Picture]:
        """The images whose header could be read."""
        return [picture for picture in self.pictures if picture is not None and picture.format]

    def labels(self) -> list[LabelCount]:
        """The labels of the source, in its order."""
        if self.reading is None:
            return []
        names = _harmonised(self.reader.source)
        values = self.reading.labels
        counts = (values == 1, values == 0, values == UNCERTAIN, np.isnan(values))
        columns = zip(*(count.sum(axis=0).tolist() for count in counts), strict=True)
        return [LabelCount(x, names.get(x, ""), *n) for x, n in zip(self.reader.labels, columns, strict=True)]


def readers() -> dict[str, type[ChestXrays]]:
    """The chest X-ray data sets that ship, by the name of their source."""
    exported = (getattr(fedlit.data, name) for name in fedlit.data.__all__)
    return {cls.source: cls for cls in exported if isinstance(cls, type) and issubclass(cls, ChestXrays) and cls.source}


def recognise(root: Path, source: str | None = None) -> type[ChestXrays]:
    """The reader of a folder.

    Args:
        source: the data set, where it is known.

    Raises:
        ConfigError: there is no such folder, or it looks like none of the data sets or like several.
    """
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    known = readers()
    if source is not None:
        return known[source]
    looks_like = [name for name, reader in known.items() if reader.recognises(root)]
    if len(looks_like) > 1:
        raise ConfigError(f"{root} looks like {' and like '.join(looks_like)}; say which it is by --source")
    if not looks_like:
        found = sorted(path.name for path in root.iterdir())
        layouts = "\n".join(f"  {name}: {reader.layout}" for name, reader in known.items())
        raise ConfigError(
            f"{root} looks like none of the data sets: found {listed(found) if found else 'an empty folder'}\n{layouts}"
        )
    return known[looks_like[0]]


def check(reader: ChestXrays, decode: bool = False) -> Check:
    """Read a data set's label files and look at each of its images, with a progress bar on the terminal.

    Args:
        decode: decode each image, which finds damage behind the header and equal pictures of different patients.

    Raises:
        ConfigError: images are DICOM files, and pydicom is not installed.
    """
    found = Check(reader, decode)
    try:
        found.reading = reading = reader.read()
    except (ValueError, OSError, EOFError) as error:
        told = str(error) if str(reader.root) in str(error) else f"{reader.root}: {error}"
        found.problems.append(Problem(f"{told}\nThe images were not looked at; mend this first"))
        return found
    found.remarks += reading.notes
    found.pictures = _look_at(reading.files, decode)
    found.problems += [*_repeated(reading), *_in_two_splits(found), *_unusable(found), *_under_two_patients(found)]
    found.remarks += _unlabelled(found) + _mixed_depths(found)
    return found


def compare(checks: Sequence[Check]) -> list[Problem]:
    """Images and patients that two folders share: by name, by patient where both are of one source, and by picture."""
    problems = []
    for one, other in combinations([found for found in checks if found.reading is not None], 2):
        where = f"{one.reader.root} and {other.reader.root}"
        names = sorted(set(one.reading.names) & set(other.reading.names))
        if names:
            problems.append(Problem(f"{len(names)} images are in {where} under the same name: {LEAK}", names))
        patients = sorted(set(one.reading.patients) & set(other.reading.patients))
        if patients and one.reader.source == other.reader.source:
            places = [f"patient {patient}" for patient in patients]
            problems.append(Problem(f"{len(patients)} patients are in {where}: {LEAK}", places))
        theirs = _by_digest(other)
        places = [
            f"{one.reading.files[rows[0]]} is {other.reading.files[theirs[digest][0]]}"
            for digest, rows in _by_digest(one).items()
            if digest in theirs
        ]
        if places:
            problems.append(Problem(f"{len(places)} pictures are in {where}: {LEAK}", places))
    return problems


def _harmonised(source: str) -> dict[str, str]:
    """The canonical name of each label of a source that has one."""
    of: dict[str, str] = {}
    for name, called in harmonised_names(source).items():
        for label in [called] if isinstance(called, str) else [x for several in called.values() for x in several]:
            of[label] = name
    return of


def _look_at(files: Sequence[Path], decode: bool) -> list[Picture | None]:
    here = present(list(files))
    pictures: list[Picture | None] = [None] * len(files)
    rows = np.flatnonzero(here).tolist()
    pool = ThreadPoolExecutor()
    try:
        looks = pool.map(lambda row: look_at(files[row], decode), rows)
        doing = f"{'Decoding' if decode else 'Opening'} {len(rows):,} images"
        terminal = Console(stderr=True)
        hidden = not terminal.is_terminal
        bar = track(looks, doing, total=len(rows), console=terminal, transient=True, disable=hidden)
        for row, picture in zip(rows, bar, strict=True):
            pictures[row] = picture
    finally:
        # Not as a context manager: after Ctrl-C that would look at all the other files before it lets go.
        pool.shutdown(cancel_futures=True)
    return pictures


def look_at(file: Path, decode: bool = False) -> Picture:
    """What an image file is: its header, and its pixels where they are to be decoded.

    Raises:
        ConfigError: a DICOM file, and pydicom is not installed.
    """
    try:
        header = _dicom_header(file) if file.suffix.lower() in SUFFIXES else _header(file)
    except ConfigError:  # no fault of this file
        raise
    except UnidentifiedImageError:
        return Picture(problem="no image, or its header is damaged")
    except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, struct.error...
        return Picture(problem=str(error))
    if header[2] == "floating point":
        return Picture(*header, problem="floating point pixels; convert it to 8 or 16 bits")
    if not decode:
        return Picture(*header)
    try:
        pixels = read_image(file, _DIGEST_SIZE)
    except Exception as error:
        return Picture(*header, problem=f"cannot be decoded: {error}")
    if pixels.min() == pixels.max():
        return Picture(*header, problem=f"shows nothing: all pixels are {pixels.min()} of 255")
    return Picture(*header, digest=hashlib.sha256(pixels.tobytes()).hexdigest())


def _header(file: Path) -> tuple[str, int, str, tuple[int, int]]:
    with Image.open(file) as image:
        return (image.format or "", *_KINDS.get(image.mode, (8, image.mode)), image.size)


def _dicom_header(file: Path) -> tuple[str, int, str, tuple[int, int]]:
    try:
        from pydicom import dcmread
    except ModuleNotFoundError:
        raise ConfigError(f"{file}: DICOM files need pydicom: pip install 'fedlit[dicom]'") from None
    header = dcmread(file, stop_before_pixels=True)
    return "DICOM", int(header.BitsStored), str(header.PhotometricInterpretation), (header.Columns, header.Rows)


def _repeated(reading: Reading) -> Iterator[Problem]:
    names, counts = np.unique(reading.names, return_counts=True)
    if (counts > 1).any():
        twice = names[counts > 1].tolist()
        yield Problem(f"{len(twice)} images are there more than once", _places(reading, twice))


def _in_two_splits(found: Check) -> Iterator[Problem]:
    reading = found.reading
    if reading.splits is None or not found.reader.official_split:
        return
    pairs = np.unique(np.stack([reading.patients, reading.splits.astype(str)], axis=1), axis=0)
    patients, counts = np.unique(pairs[:, 0], return_counts=True)
    if (counts > 1).any():
        places = [
            f"patient {patient}: {', '.join(pairs[pairs[:, 0] == patient, 1])}"
            for patient in patients[counts > 1].tolist()
        ]
        yield Problem(f"{len(places)} patients are in more than one official split: {LEAK}", places)


def _unusable(found: Check) -> Iterator[Problem]:
    reading = found.reading
    absent = [row for row, picture in enumerate(found.pictures) if picture is None]
    if absent:
        text = f"{len(absent)} of {len(reading.files)} images are missing; add them, remove their rows, or set "
        yield Problem(f"{text}data.missing to drop", _files(reading, absent))
    broken = [row for row, picture in enumerate(found.pictures) if picture is not None and picture.problem]
    if broken:
        text = f"{len(broken)} of {len(reading.files)} images are of no use; replace them, or remove their rows"
        reasons = [found.pictures[row].problem for row in broken]
        yield Problem(text, [f"{at}: {why}" for at, why in zip(_files(reading, broken), reasons, strict=True)])


def _under_two_patients(found: Check) -> Iterator[Problem]:
    reading, places = found.reading, []
    for rows in _by_digest(found).values():
        first = {}
        for row in rows:
            first.setdefault(str(reading.patients[row]), row)
        if len(first) > 1:
            places.append(" is ".join(f"{reading.files[row]} (patient {patient})" for patient, row in first.items()))
    if places:
        yield Problem(f"{len(places)} pictures are there under more than one patient: {LEAK}", places)


def _unlabelled(found: Check) -> list[str]:
    never = [count.label for count in found.labels() if count.positives == 0]
    return [f"no image is positive for {', '.join(never)}"] if never else []


def _mixed_depths(found: Check) -> list[str]:
    depths, counts = np.unique([picture.bits for picture in found.opened], return_counts=True)
    if len(depths) < 2:
        return []
    told = " and ".join(f"{count:,} of {bits} bits" for bits, count in zip(depths, counts, strict=True))
    return [f"images differ in their bit depth: {told}; each is scaled by its own"]


def _by_digest(found: Check) -> dict[str, list[int]]:
    """The rows that show each picture."""
    rows: dict[str, list[int]] = {}
    for row, picture in enumerate(found.pictures):
        if picture is not None and picture.digest:
            rows.setdefault(picture.digest, []).append(row)
    return rows


def _files(reading: Reading, rows: Sequence[int]) -> list[str]:
    """Files, those to be shown with the line of a label file that names them."""
    lines = _lines(reading, [str(reading.names[row]) for row in rows[:SHOWN]])
    return [
        f"{reading.files[row]} ({lines[name]})"
        if (name := str(reading.names[row])) in lines
        else str(reading.files[row])
        for row in rows
    ]


def _places(reading: Reading, names: Sequence[str]) -> list[str]:
    lines = _lines(reading, names[:SHOWN])
    return [f"{name} ({lines[name]})" if name in lines else name for name in names]


def _lines(reading: Reading, names: Sequence[str]) -> dict[str, str]:
    """Label file and line where each name is first, as far as it is written there literally."""
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
