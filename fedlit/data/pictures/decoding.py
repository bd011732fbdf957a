"""Decoding of image files into a store, in threads or processes; what is decoded is kept if it stops.

An unfinished store is named by its files alone, and a finished one also by their sizes and times: so a damaged file
that is replaced is decoded without the others.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from fedlit.core.errors import ConfigError, DataError, MissingFileError
from fedlit.core.system.processes import can_be_copied, context, cores, end_with_parent, may_have_children, starting
from fedlit.data.pictures import pixels
from fedlit.data.pictures.cache import begin, build, cache_folder, checksum, note, opened
from fedlit.data.pictures.dicom import is_dicom
from fedlit.data.pictures.hashes import perceptual_hashes
from fedlit.data.pictures.pixels import DEPTH, Resize, not_a_file
from fedlit.data.pictures.store import ImageStore

Damaged = Literal["refuse", "drop"]

# Part of every name: raise it when decoding changes, so that old images are not reused.
_FORMAT = "7"

SAMPLE = 64
"""Number of files of the sample that is decoded first, spread over the list."""

MANY = 512
"""Number of DICOM files from which on processes decode: threads wait for each other in those decoders. Other formats
are decoded as fast by threads, which start at once."""

CHUNK = 8
"""Number of files that a thread or process decodes before it replies."""


def decode_images(
    files: Sequence[str | Path],
    image_size: int,
    channels: int = 1,
    cache_dir: str | Path | None = None,
    depth: int = DEPTH,
    damaged: Damaged = "refuse",
    resize: Resize = "squeeze",
) -> ImageStore:
    """Decode and resize image files into a store, or return the store if they were decoded before.

    Args:
        files: The image files, in the order of the store.
        image_size: Height and width of the stored images in pixels.
        channels: Number of channels: 1 (grey) or 3 (RGB).
        cache_dir: The cache folder, see ``cache_folder``.
        depth: Number of bits that the data set uses of pixels with more than 8, see ``read_image``.
        damaged: Rule for files that cannot be decoded, ``refuse`` or ``drop``: their images are black, and the store
            has the reasons as ``damaged``.
        resize: Rule for images that are not square, ``squeeze`` or ``pad``.

    Raises:
        FileNotFoundError: Files are missing.
        ValueError: Files cannot be decoded (damaged, truncated or not images), and ``damaged`` is ``refuse``; or it is
            ``drop``, and most files of a sample cannot be decoded. The other images are kept.
        ConfigError: A package that decodes some of the files is missing.
    """
    files, options = [os.fspath(file) for file in files], (image_size, channels, depth, resize)
    ids = identities(files)
    recipe = hashlib.sha256(f"{_FORMAT} {options}\n".encode())
    recipe.update("\0".join(map(os.path.abspath, files)).encode(errors="surrogateescape"))
    draft = cache_folder(cache_dir) / f"images-{image_size}-{recipe.hexdigest()[:24]}.partial"
    recipe.update(ids.tobytes())
    folder = draft.with_name(f"images-{image_size}-{recipe.hexdigest()[:24]}")
    shape = len(files), channels, image_size, image_size

    def fill(draft: Path) -> None:
        array, rows = begin(draft, shape, np.uint8, ids)
        waiting = np.flatnonzero(rows["sum"] == 0)
        cached = f", {len(files) - len(waiting):,} of them are decoded already" if len(waiting) < len(files) else ""
        note(f"decoding {len(files):,} images{cached}; they take {decimal(array.nbytes)} in {folder}")
        failures = _decode(draft, files, waiting, options, damaged)
        (draft / "damaged.json").write_text(json.dumps(failures), encoding="utf-8")

    build(folder, shape, np.uint8, fill, draft)
    store = ImageStore(folder)
    if damaged == "refuse" and (failures := store.damaged):
        raise _refusal(failures, files, len(files))
    return store


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
            missing.append(f"{file} is {not_a_file(file)}")
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


def _decode(draft: Path, files: Sequence[str], rows: np.ndarray, options: tuple, damaged: Damaged) -> dict[int, str]:
    """Decode rows of an unfinished store, a sample first; return the reason for each that cannot be decoded.

    Raises:
        DataError: Files cannot be decoded, see ``decode_images``.
    """
    failures: dict[int, str] = {}
    terminal = Console(stderr=True)
    bar = {"console": terminal, "transient": True, "disable": not terminal.is_terminal}

    def take(rows: np.ndarray) -> None:
        with _answers(draft, files, rows, options) as answers:  # before the bar, whose thread forbids copies of us
            failures.update((row, reason) for row, reason in track(answers, "decoding", len(rows), **bar) if reason)

    count = SAMPLE if len(rows) > 4 * SAMPLE else len(rows)
    sample = rows[np.unique(np.linspace(0, len(rows) - 1, count).astype(np.int64))]
    rest, began = np.setdiff1d(rows, sample), time.perf_counter()
    take(sample)
    if len(rest):
        if failures and (damaged == "refuse" or len(failures) > len(sample) / 2):
            raise _refusal(failures, files, len(sample))
        left = timedelta(seconds=round((time.perf_counter() - began) / len(sample) * len(rest)))
        note(f"decoded a sample of {len(sample)} files; the others take less than {left} on {cores()} cores")
        take(rest)
    if failures and damaged == "refuse":
        raise _refusal(failures, files, len(files))
    return failures


@contextmanager
def _answers(
    draft: Path, files: Sequence[str], rows: np.ndarray, options: tuple
) -> Iterator[Iterator[tuple[int, str]]]:
    """Decode rows: an iterator over each with the reason if it cannot be decoded, or ""; the end drops other rows."""
    parts = [rows[start : start + CHUNK].tolist() for start in range(0, len(rows), CHUNK)]
    chunks = [[(row, files[row]) for row in part] for part in parts]
    enough = MANY if can_be_copied() else 8 * MANY  # other processes import PyTorch first
    slow = len(rows) >= enough and is_dicom(Path(files[rows[0]]))
    processes = slow and cores() > 1 and may_have_children()
    pool = (
        ProcessPoolExecutor(cores(), context(alike=True), _begin_process) if processes else ThreadPoolExecutor(cores())
    )
    try:
        with starting() if processes else nullcontext():
            answers = pool.map(partial(_decode_chunk, draft, options), chunks)
        yield chain.from_iterable(answers)
    finally:
        # Not as a context manager, which would decode all other files after Ctrl-C.
        pool.shutdown(cancel_futures=True)


def _begin_process() -> None:
    import torch

    torch.set_num_threads(1)  # a copy of a process has none of its threads
    end_with_parent()


def _decode_chunk(draft: Path, options: tuple, chunk: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Decode files into their rows; return each row with the reason if its file cannot be decoded, or ""."""
    images, rows = opened(draft, "r+")
    reasons = []
    for row, file in chunk:
        try:
            image = pixels.read_image(Path(file), *options)
        except ConfigError:  # a package is missing, so the file is not to blame
            raise
        except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
            reasons.append((row, str(error) or type(error).__name__))
        else:
            images[row] = image
            rows["hash"][row] = perceptual_hashes(image[None])[0]
            rows["sum"][row] = checksum(image)  # the last, so that a kill leaves no half image
            reasons.append((row, ""))
    return reasons


def _refusal(failures: dict[int, str], files: Sequence[str], read: int) -> DataError:
    """Return the error about files that cannot be decoded; ``read`` is the number of files that were tried."""
    lines = sorted(f"{files[row]}: {reason}" for row, reason in failures.items())
    sample = f" of a sample (of {len(files):,})" if read < len(files) else ""
    advice = "set data.damaged to drop"
    if len(lines) > read / 2:
        advice = "check whether a package or a folder is missing, because so many files are affected"
    left = (
        f"The other {len(files) - read:,} were not read; `fedlit data check FOLDER --decode` lists all damaged files."
    )
    return DataError(
        f"{len(lines)} of {read} image files{sample} cannot be decoded (damaged or not images):\n  "
        + "\n  ".join(lines[:5])
        + f"\nReplace these files, or {advice}: decoded images are kept. Or remove them, also from the label file if "
        f"there is one. {sample and left}".rstrip()
    )
