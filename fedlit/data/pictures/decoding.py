"""Decoding of image files into a store, with a sample first; finished images are kept if it stops.

``NAME.npy`` is the store, ``NAME.rows`` has the identity and the perceptual hashes of each image, and ``NAME.damaged``
lists the files that cannot be decoded. Until the store is complete, the images are in ``NAME.partial``. An image that
another store has, finished or not, is copied from there.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.filesize import decimal

from fedlit.core.errors import DataError, MissingFileError
from fedlit.core.system.files import whole
from fedlit.core.system.processes import cores
from fedlit.data.pictures.cache import append_checksum, damage, intact, sweep
from fedlit.data.pictures.decoders import DecodeSettings, decoded, duration, with_bar
from fedlit.data.pictures.hashes import PARTS
from fedlit.data.pictures.opening import not_a_file
from fedlit.data.pictures.pixels import DEPTH, Resize
from fedlit.data.pictures.store import ImageStore, cache_folder, check_space, make_cache_folder

Damaged = Literal["refuse", "drop"]

# Part of every identity: raise it when decoding changes, so that old images are not reused.
_FORMAT = "6"

MAX_FAILURES = 100
"""Number of damaged files after which decoding stops if damage is refused."""

SAMPLE = 64
"""Number of files of the sample, spread over the list."""

WORTH = 30
"""Seconds of work from which on starting processes pays off."""

ROW = np.dtype([("id", "<u8"), ("hash", "<u8", len(PARTS)), ("state", "u1")])
OPEN, DONE, BROKEN = 0, 1, 2
"""States of a row."""


def decode_images(
    files: Sequence[str | Path],
    image_size: int,
    channels: int = 1,
    cache_dir: str | Path | None = None,
    depth: int = DEPTH,
) -> ImageStore:
    """Decode and resize image files into a store, or return the store if they were decoded before.

    Args:
        files: The image files, in the order of the store.
        image_size: Height and width of the stored images in pixels.
        channels: Number of channels: 1 (grey) or 3 (RGB).
        cache_dir: The cache folder, see ``cache_folder``.
        depth: Number of bits that the data set uses of pixels with more than 8, see ``read_image``.

    Raises:
        FileNotFoundError: Files are missing.
        ValueError: Files cannot be decoded: they are damaged, truncated or not images. The other images are kept.
        ConfigError: A package that decodes some of the files is missing.
    """
    return decode(files, image_size, channels, cache_dir, depth)[0]


def decode(
    files: Sequence[str | Path],
    image_size: int,
    channels: int = 1,
    cache_dir: str | Path | None = None,
    depth: int = DEPTH,
    damaged: Damaged = "refuse",
    resize: Resize = "squeeze",
) -> tuple[ImageStore, dict[int, str]]:
    """Decode files as ``decode_images`` does; with ``damaged="drop"``, continue if some cannot be decoded.

    Returns:
        The store, black where a file is damaged, and the reason for each row whose file cannot be decoded.

    Raises:
        ValueError: Files cannot be decoded, and ``damaged`` is ``refuse``; or it is ``drop``, and most files of the
            sample cannot be decoded.
    """
    files = [os.fspath(file) for file in files]
    ids = identities(files, f"{_FORMAT} {image_size} {channels} {depth}{'' if resize == 'squeeze' else f' {resize}'}")
    shape = (len(files), channels, image_size, image_size)
    folder = cache_folder(cache_dir)
    place = CachePlace(folder, f"images-{image_size}-{hashlib.sha256(ids.tobytes()).hexdigest()[:24]}", ids, shape)
    if not place.complete():
        make_cache_folder(folder)
        sweep(folder)
        with FileLock(folder / f".{place.name}.lock"):  # another process that needs the same images waits
            if not (place.store.exists() and place.complete()):
                _fill(place, DecodeSettings(files, image_size, channels, depth, resize), damaged)
    reasons = place.reasons()
    if reasons and damaged == "refuse":
        raise _refusal({f"{files[row]}: {reason}" for row, reason in reasons.items()}, len(files))
    return ImageStore(place.store), reasons


@dataclass
class CachePlace:
    """Paths in the cache for the images of a list of files.

    Attributes:
        folder: The cache folder.
        name: Name of the store.
        ids: Identity of each file, [N] uint64.
        shape: [N, channels, height, width].
        store: The finished store.
        partial: The unfinished store.
        rows: Identity, hashes and state of each row.
        damaged: Reasons why files cannot be decoded.
    """

    folder: Path
    name: str
    ids: np.ndarray
    shape: tuple[int, int, int, int]

    def __post_init__(self) -> None:
        suffixes = (".npy", ".partial", ".rows", ".damaged")
        self.store, self.partial, self.rows, self.damaged = (self.folder / f"{self.name}{each}" for each in suffixes)

    def complete(self) -> bool:
        """Return True if the store is complete and intact."""
        return self.rows.exists() and intact(self.store, self.shape, np.uint8)

    def reasons(self) -> dict[int, str]:
        """Return the reasons why files cannot be decoded, by row."""
        if not self.damaged.exists():
            return {}
        return {int(row): reason for row, reason in json.loads(self.damaged.read_text(encoding="utf-8")).items()}

    def begin(self) -> np.memmap:
        """Return the rows of the unfinished store, which is created if it does not exist."""
        if self.partial.exists() and not damage(self.partial, self.shape, np.uint8) and self.rows.exists():
            rows = np.load(self.rows, mmap_mode="r+")
            if rows.dtype == ROW and np.array_equal(rows["id"], self.ids):
                return rows
        for file in (self.store, self.partial, self.rows):
            file.unlink(missing_ok=True)
        check_space(self.folder, self.shape)
        np.lib.format.open_memmap(self.partial, mode="w+", dtype=np.uint8, shape=self.shape).flush()
        rows = np.lib.format.open_memmap(self.rows, mode="w+", dtype=ROW, shape=self.shape[:1])
        rows["id"] = self.ids
        _adopt(self, rows)
        return rows

    def finish(self, reasons: dict[int, str]) -> None:
        """Seal the unfinished store and give it its final name."""
        self.note(reasons)
        append_checksum(self.partial)
        os.replace(self.partial, self.store)

    def note(self, reasons: dict[int, str]) -> None:
        """Write the reasons why files cannot be decoded."""
        if not reasons:
            self.damaged.unlink(missing_ok=True)
            return
        with whole(self.damaged) as draft:
            draft.write_text(json.dumps(reasons), encoding="utf-8")


def identities(files: Sequence[str], settings: str) -> np.ndarray:
    """Return a digest of each file's path, size and time, and of the decoding settings, [N] uint64.

    Raises:
        MissingFileError: Files are missing.
    """
    ids, missing, stem = np.empty(len(files), dtype=np.uint64), [], f"{settings}\n"
    for row, file in enumerate(files):
        try:
            status = os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(file)
        except OSError:
            missing.append(f"{file} is {not_a_file(Path(file))}")
        else:
            text = f"{stem}{os.path.abspath(file)}\0{status.st_size}\0{status.st_mtime_ns}"
            ids[row] = int.from_bytes(
                hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest(), "little"
            )
    if missing:
        raise MissingFileError(
            f"{len(missing)} of {len(files)} image files are missing:\n  " + "\n  ".join(missing[:5])
            + "\nAdd these files, or remove them from the label file."
        )  # fmt: skip
    return ids


def _fill(place: CachePlace, job: DecodeSettings, damaged: Damaged) -> None:
    rows = place.begin()
    waiting = np.flatnonzero(rows["state"] != DONE)
    total, say = len(rows), Console(stderr=True, highlight=False, soft_wrap=True).print
    size = decimal(math.prod(place.shape))
    cached = f", {total - len(waiting):,} of them are decoded already" if len(waiting) < total else ""
    say(f"decoding {total:,} images{cached}; they take {size} in {place.store}")
    failures: dict[int, str] = {}
    most = MAX_FAILURES if damaged == "refuse" else total + 1

    def look(at: np.ndarray, processes: bool = False, bar: bool = False) -> None:
        with closing(decoded(job, place.partial, place.rows, at, processes)) as doing:
            for row, reason in with_bar(doing, len(at)) if bar else doing:
                if reason:
                    failures[row] = reason
                if len(failures) >= most:
                    return

    looked = SAMPLE if len(waiting) > 4 * SAMPLE else len(waiting)
    first = waiting[np.unique(np.linspace(0, len(waiting) - 1, looked).astype(np.int64))]
    rest = np.setdiff1d(waiting, first)
    began, busy = time.perf_counter(), time.process_time()
    look(first)
    took, busy = time.perf_counter() - began, time.process_time() - busy
    if len(rest):
        _check_sample(job, failures, len(first), total, damaged)
        left = took / len(first) * len(rest)
        blocked = busy / max(took, 1e-9) < 1.3 and cores() > 1 and left > WORTH
        say(f"decoded a sample of {len(first)} files; about {duration(left)} left on {cores()} cores")
        look(rest, processes=blocked, bar=True)
    rows["state"][list(failures)] = BROKEN
    rows.flush()
    if failures and damaged == "refuse":
        raise _refusal({f"{job.files[row]}: {reason}" for row, reason in failures.items()}, total)
    place.finish(failures)


def _check_sample(job: DecodeSettings, failures: dict[int, str], count: int, total: int, damaged: Damaged) -> None:
    """Raise an error if the sample has damaged files or, with ``drop``, mostly damaged files."""
    if not failures or (damaged == "drop" and len(failures) <= count / 2):
        return
    lines = [f"{job.files[row]}: {reason}" for row, reason in failures.items()]
    advice = (
        "set data.damaged to drop"
        if damaged == "refuse"
        else "check whether a package or a folder is missing, because so many files are affected"
    )
    raise DataError(
        f"{len(failures)} of {count} image files of a sample (of {total:,}) cannot be decoded (damaged or not "
        "images):\n  "
        + "\n  ".join(lines[:5])
        + f"\nReplace these files, remove them from the label file, or {advice}. The other {total - count:,} were not "
        "read; `fedlit data check FOLDER --decode` lists all damaged files. Decoded images are kept."
    )


def _refusal(lines: set[str], total: int) -> DataError:
    count = f"{len(lines)}{' or more' if len(lines) >= MAX_FAILURES else ''}"
    return DataError(
        f"{count} of {total} image files cannot be decoded (damaged or not images):\n  "
        + "\n  ".join(sorted(lines)[:5])
        + "\nReplace these files, or remove them, also from the label file if there is one; or set data.damaged to "
        "drop. Decoded images are kept."
    )


def _adopt(place: CachePlace, rows: np.memmap) -> None:
    """Copy images from other stores, finished or not, and remove an unfinished store that is no longer needed."""
    pictures = np.load(place.partial, mmap_mode="r+")
    for file in sorted(place.folder.glob(f"{place.name.rpartition('-')[0]}-*.rows")):
        other = CachePlace(place.folder, file.stem, place.ids, place.shape)
        held = other.store if other.store.exists() else other.partial
        if file == place.rows or not held.exists():
            continue
        theirs = np.load(file, mmap_mode="r")
        if theirs.dtype != ROW or damage(held, (len(theirs), *place.shape[1:]), np.uint8):
            continue
        have, wanted = np.flatnonzero(theirs["state"] == DONE), np.flatnonzero(rows["state"] != DONE)
        _, mine, matching = np.intersect1d(rows["id"][wanted], theirs["id"][have], return_indices=True)
        source = np.load(held, mmap_mode="r")
        for start in range(0, len(mine), 1024):
            to, of = wanted[mine[start : start + 1024]], have[matching[start : start + 1024]]
            pictures[to] = source[of]
            rows["hash"][to], rows["state"][to] = theirs["hash"][of], DONE
        if held == other.partial and len(mine) == len(have):
            for each in (other.partial, other.rows, other.damaged):
                each.unlink(missing_ok=True)
