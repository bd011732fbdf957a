"""Decoding of image files into a store, in threads or processes; what is decoded is kept if it stops.

``NAME.damaged`` of a store lists the files that cannot be decoded. An unfinished store is named by its files alone, and
a finished one also by their sizes and times: so a damaged file that is replaced is decoded without the others.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from fedlit.core.errors import ConfigError, DataError, MissingFileError
from fedlit.core.system.files import whole
from fedlit.core.system.processes import can_be_copied, context, cores, end_with_parent, may_have_children, starting
from fedlit.data.pictures import pixels
from fedlit.data.pictures.dicom import is_dicom
from fedlit.data.pictures.hashes import perceptual_hashes
from fedlit.data.pictures.opening import not_a_file
from fedlit.data.pictures.pixels import DEPTH, Resize
from fedlit.data.pictures.store import (
    ROW,
    ImageStore,
    begin,
    cache_folder,
    checksum,
    damage,
    locked,
    note,
    warn_of_damage,
)

Damaged = Literal["refuse", "drop"]

# Part of every name: raise it when decoding changes, so that old images are not reused.
_FORMAT = "7"

MAX_FAILURES = 100
"""Number of damaged files after which decoding stops if damage is refused."""

SAMPLE = 64
"""Number of files of the sample that is decoded first, spread over the list."""

MANY = 512
"""Number of DICOM files from which on processes decode: threads wait for each other in those decoders. Other formats
are decoded as fast by threads, which start at once."""

CHUNK = 8
"""Number of files that a process decodes before it replies."""


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
    files, options = [os.fspath(file) for file in files], (image_size, channels, depth, resize)
    ids, shape = identities(files), (len(files), channels, image_size, image_size)
    recipe = hashlib.sha256(f"{_FORMAT} {options}\n".encode())
    recipe.update("\0".join(map(os.path.abspath, files)).encode(errors="surrogateescape"))
    draft = cache_folder(cache_dir) / f"images-{image_size}-{recipe.hexdigest()[:24]}.partial"
    recipe.update(ids.tobytes())
    file = draft.with_name(f"images-{image_size}-{recipe.hexdigest()[:24]}.npy")
    if damage(file, shape, np.uint8):
        with locked(draft):  # another process that needs the same images waits
            if damage(file, shape, np.uint8):
                warn_of_damage(file, shape, np.uint8)
                if file.exists():  # only its damaged images are decoded again
                    os.replace(file, draft)
                    os.replace(file.with_suffix(".rows"), draft.with_suffix(".rows"))
                _fill(_Target(draft, *_begin(draft, ids, shape), options), files, file, damaged)
    noted = json.loads(file.with_suffix(".damaged").read_text(encoding="utf-8"))
    reasons = {int(row): reason for row, reason in noted.items()}
    if reasons and damaged == "refuse":
        raise _refusal(reasons, files, len(files))
    return ImageStore(file), reasons


class _Target:
    """An unfinished store, to which images are decoded."""

    def __init__(self, draft: Path, images: np.memmap, rows: np.memmap, options: tuple) -> None:
        self.draft, self.images, self.rows, self.options = draft, images, rows, options

    def __reduce__(self):
        return _open, (self.draft, self.options)

    def take(self, chunk: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Decode files into their rows; return each row with the reason if its file cannot be decoded, or ""."""
        return [(row, self._decode(row, file)) for row, file in chunk]

    def _decode(self, row: int, file: str) -> str:
        try:
            image = pixels.read_image(Path(file), *self.options)
        except ConfigError:  # a package is missing, so the file is not to blame
            raise
        except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
            return str(error) or type(error).__name__
        self.images[row] = image
        self.rows["hash"][row] = perceptual_hashes(image[None])[0]
        self.rows["sum"][row] = checksum(image)  # the last, so that a kill leaves no half image
        return ""


def _open(draft: Path, options: tuple) -> _Target:
    return _Target(draft, np.load(draft, mmap_mode="r+"), np.load(draft.with_suffix(".rows"), mmap_mode="r+"), options)


def _begin(draft: Path, ids: np.ndarray, shape: tuple[int, ...]) -> tuple[np.memmap, np.memmap]:
    """Return the images and rows of an unfinished store, with the intact images that it has of the same files."""
    file = draft.with_suffix(".rows")
    try:
        images, rows = np.load(draft, mmap_mode="r+"), np.load(file, mmap_mode="r+")
        usable = images.shape == shape and images.dtype == np.uint8 and rows.dtype == ROW and len(rows) == len(ids)
    except (OSError, ValueError, EOFError, SyntaxError):
        usable = False
    if not usable:
        images = begin(draft, shape, np.uint8)
        images.flush()
        rows = np.lib.format.open_memmap(file, mode="w+", dtype=ROW, shape=ids.shape)
    for row in np.flatnonzero(rows["sum"]):
        if rows["id"][row] != ids[row] or rows["sum"][row] != checksum(images[row]):
            images[row], rows["sum"][row] = 0, 0
    rows["id"] = ids
    return images, rows


def identities(files: Sequence[str]) -> np.ndarray:
    """Return a digest of each file's path, size and time, [N] uint64.

    Raises:
        MissingFileError: Files are missing.
    """
    ids, missing = np.empty(len(files), dtype=np.uint64), []
    for row, file in enumerate(files):
        try:
            status = os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(file)
        except OSError:
            missing.append(f"{file} is {not_a_file(Path(file))}")
        else:
            text = f"{os.path.abspath(file)}\0{status.st_size}\0{status.st_mtime_ns}"
            digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
            ids[row] = int.from_bytes(digest, "little")
    if missing:
        raise MissingFileError(
            f"{len(missing)} of {len(files)} image files are missing:\n  " + "\n  ".join(missing[:5])
            + "\nAdd these files, or remove them from the label file."
        )  # fmt: skip
    return ids


def _fill(target: _Target, files: Sequence[str], file: Path, damaged: Damaged) -> None:
    """Decode the images that an unfinished store lacks, and give it its final name."""
    waiting, total = np.flatnonzero(target.rows["sum"] == 0), len(files)
    cached = f", {total - len(waiting):,} of them are decoded already" if len(waiting) < total else ""
    note(f"decoding {total:,} images{cached}; they take {decimal(target.images.nbytes)} in {file}")
    failures: dict[int, str] = {}
    terminal = Console(stderr=True)
    bar = {"console": terminal, "transient": True, "disable": not terminal.is_terminal}

    def take(rows: np.ndarray) -> None:
        with _decoded(target, files, rows) as doing:  # before the bar, whose thread forbids copies of this process
            for row, reason in track(doing, "decoding", len(rows), **bar):
                if reason:
                    failures[row] = reason
                if len(failures) >= MAX_FAILURES and damaged == "refuse":
                    return

    count = SAMPLE if len(waiting) > 4 * SAMPLE else len(waiting)
    first = waiting[np.unique(np.linspace(0, len(waiting) - 1, count).astype(np.int64))]
    rest, began = np.setdiff1d(waiting, first), time.perf_counter()
    take(first)
    if len(rest):
        if failures and (damaged == "refuse" or len(failures) > len(first) / 2):
            raise _refusal(failures, files, len(first))
        left = timedelta(seconds=round((time.perf_counter() - began) / len(first) * len(rest)))
        note(f"decoded a sample of {len(first)} files; the others take less than {left} on {cores()} cores")
        take(rest)
    if failures and damaged == "refuse":
        raise _refusal(failures, files, total)
    with whole(file.with_suffix(".damaged")) as draft:
        draft.write_text(json.dumps(failures), encoding="utf-8")
    target.rows.flush()
    rows = target.draft.with_suffix(".rows")
    shutil.copyfile(rows, file.with_suffix(".rows"))
    os.replace(target.draft, file)
    rows.unlink()


@contextmanager
def _decoded(target: _Target, files: Sequence[str], rows: np.ndarray) -> Iterator[Iterator[tuple[int, str]]]:
    """Decode rows: an iterator over each with the reason if it cannot be decoded, or ""; the end drops other rows."""
    parts = [rows[start : start + CHUNK].tolist() for start in range(0, len(rows), CHUNK)]
    chunks = [[(row, files[row]) for row in part] for part in parts]
    enough = MANY if can_be_copied() else 8 * MANY  # other processes import PyTorch first
    slow = len(rows) >= enough and is_dicom(Path(files[rows[0]]))
    processes = slow and cores() > 1 and may_have_children()
    if processes:
        pool = ProcessPoolExecutor(cores(), context(alike=True), _begin_process, (target,))
    else:
        pool = ThreadPoolExecutor(cores())
    try:
        with starting() if processes else nullcontext():
            answers = pool.map(_take if processes else target.take, chunks)
        yield chain.from_iterable(answers)
    finally:
        # Not as a context manager, which would decode all other files after Ctrl-C.
        pool.shutdown(cancel_futures=True)


_target: _Target | None = None  # of a process that decodes


def _begin_process(target: _Target) -> None:
    global _target
    _target = target
    import torch

    torch.set_num_threads(1)  # a copy of a process has none of its threads
    end_with_parent()


def _take(chunk: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return _target.take(chunk)


def _refusal(failures: dict[int, str], files: Sequence[str], read: int) -> DataError:
    """Return the error about files that cannot be decoded; ``read`` is the number of files that were tried."""
    lines = sorted(f"{files[row]}: {reason}" for row, reason in failures.items())
    count = f"{len(lines)}{' or more' if len(lines) >= MAX_FAILURES else ''} of {read}"
    sample = f" of a sample (of {len(files):,})" if read < len(files) else ""
    advice = "set data.damaged to drop"
    if len(lines) > read / 2:
        advice = "check whether a package or a folder is missing, because so many files are affected"
    left = (
        f"The other {len(files) - read:,} were not read; `fedlit data check FOLDER --decode` lists all damaged files."
    )
    return DataError(
        f"{count} image files{sample} cannot be decoded (damaged or not images):\n  " + "\n  ".join(lines[:5])
        + f"\nReplace these files, or {advice}: decoded images are kept. Or remove them, also from the label file if "
        f"there is one. {sample and left}".rstrip()
    )  # fmt: skip
