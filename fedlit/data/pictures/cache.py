"""The cache: arrays in one folder each, which one process at a time makes; their list, and their removal.

``NAME/array.npy`` is an array, such as images, and ``NAME/rows.npy`` has the checksum of each of its rows, by which
damage is found. Until the array is complete, the folder is ``NAME.partial``.
"""

import json
import math
import os
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock, Timeout
from rich.console import Console

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.system import files
from fedlit.data.pictures.hashes import PARTS

ROW = np.dtype([("id", "<u8"), ("sum", "<u4"), ("hash", "<u8", len(PARTS))])
"""What is known of a row: the identity of its file, its checksum (0 until it is written) and its perceptual hashes."""

CHECKED = 64 * 2**20
"""Number of bytes that are compared with their checksums when an array is opened: of a larger one, rows spread over it,
in less than a second."""

_OPENING = threading.Lock()
"""Held while arrays are opened: NumPy parses their headers, and Python 3.11 may fail to parse in several threads."""

UNREADABLE = (OSError, ValueError, EOFError, SyntaxError)
"""Errors of ``np.load`` for a file that is missing or damaged."""

ELSEWHERE = "name another folder: --data.cache_dir FOLDER, or XDG_CACHE_HOME in the environment"

KINDS = {
    "images": "decoded image files", "vision": "decoded data sets", "medmnist": "decoded data sets",
    "phantom": "synthetic images", "array": "images of an array", "features": "features of a frozen body",
    "pairs": "near-duplicates",
}  # fmt: skip
"""Descriptions of entries by the first word of their names."""


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of decoded images: ``cache_dir``, ``$XDG_CACHE_HOME/fedlit`` or ``~/.cache/fedlit``."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedlit"
    except RuntimeError as error:  # a container's user without a name and without HOME
        raise ConfigError(f"data.cache_dir: this user has no home directory for decoded images; {ELSEWHERE}") from error


def build(
    folder: Path, shape: tuple[int | None, ...], dtype: type, write: Callable[[Path], None], draft: Path | None = None
) -> None:
    """Make an array of the cache, unless it is there and intact; other processes that need it wait meanwhile.

    Args:
        folder: The folder of the array.
        shape: Its shape, in which None is any length.
        dtype: Its type.
        write: Called with the folder in which it makes the array and its rows, see ``begin``.
        draft: That folder, if ``write`` resumes what it finds there; otherwise it is removed after an error.
    """
    if not damage(folder, shape, dtype):
        return
    partial = draft or folder.with_name(f"{folder.name}.partial")
    with _locked(partial):
        if not (reason := damage(folder, shape, dtype)):
            return
        if folder.exists():  # its intact rows can be resumed
            warnings.warn(f"{folder}: this cache entry is damaged ({reason}); it is recreated", stacklevel=4)
            shutil.rmtree(partial, ignore_errors=True)
            os.replace(folder, partial)
        try:
            write(partial)
            for file in partial.iterdir():
                files.sync(file)  # before its name says that it is complete
            os.replace(partial, folder)
        finally:
            if draft is None:
                shutil.rmtree(partial, ignore_errors=True)


def begin(draft: Path, shape: tuple[int, ...], dtype: type, ids: np.ndarray | int = 0) -> tuple[np.memmap, np.memmap]:
    """Return the array and the rows of an unfinished entry, with the intact rows that it has of the same ``ids``.

    The checksum of all other rows is 0. Whoever writes a row writes its checksum after it, so that a kill leaves no
    half row.

    Raises:
        OSError: The disk has not enough free space.
    """
    ids = np.broadcast_to(np.asarray(ids, np.uint64), shape[:1])
    try:
        array, rows = opened(draft, "r+")
        usable = array.shape == shape and array.dtype == dtype and rows.dtype == ROW and len(rows) == len(ids)
        usable = usable and (draft / "array.npy").stat().st_size == array.offset + array.nbytes
    except UNREADABLE:
        usable = False
    if not usable:
        # Writing to a memory map on a full disk would kill the process by a signal, without a message.
        need, free = math.prod(shape) * np.dtype(dtype).itemsize, shutil.disk_usage(draft.parent).free
        if need > free:
            raise OSError(
                f"{draft.parent}: decoded images {list(shape)} need {need / 2**30:.1f} GiB, found "
                f"{free / 2**30:.1f} GiB free. Free disk space, or choose another cache_dir or a smaller image_size."
            )
        draft.mkdir(exist_ok=True)
        array = np.lib.format.open_memmap(draft / "array.npy", mode="w+", dtype=dtype, shape=shape)
        rows = np.lib.format.open_memmap(draft / "rows.npy", mode="w+", dtype=ROW, shape=ids.shape)
    for row in np.flatnonzero(rows["sum"]):
        if rows["id"][row] != ids[row] or rows["sum"][row] != checksum(array[row]):
            array[row], rows["sum"][row] = 0, 0
    rows["id"] = ids
    return array, rows


def opened(folder: Path, mode: Literal["r", "r+"] = "r") -> tuple[np.memmap, np.memmap]:
    """Return the array of an entry, and its rows."""
    with _OPENING:
        return np.load(folder / "array.npy", mmap_mode=mode), np.load(folder / "rows.npy", mmap_mode=mode)


def checksum(row: np.ndarray) -> int:
    """Return the checksum of a row of an array, which is never 0."""
    return zlib.crc32(np.ascontiguousarray(row)) or 1


def damage(folder: Path, shape: tuple[int | None, ...], dtype: type) -> str:
    """Return why an array of the cache cannot be used as text, or "" if it is intact; None in a shape is any length."""
    try:
        array, rows = opened(folder)
    except UNREADABLE as error:
        return f"it cannot be read: {error}"
    fits = len(array.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
    if array.dtype != np.dtype(dtype) or not fits:
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        return f"expected {np.dtype(dtype)} [{expected}], found {array.dtype} {list(array.shape)}"
    if (size := (folder / "array.npy").stat().st_size) != array.offset + array.nbytes:
        return f"expected {array.offset + array.nbytes:,} bytes, found {size:,}"
    if rows.dtype != ROW or len(rows) != len(array):
        return "it has no checksums"
    count = min(len(array), max(1, CHECKED // max(1, array[:1].nbytes)))
    spread = np.unique(np.linspace(0, len(array) - 1, count).astype(np.int64))
    known, plain = rows["sum"][spread].tolist(), array.view(np.ndarray)  # a map makes an object of each row
    wrong = any(each not in (0, checksum(plain[row])) for row, each in zip(spread, known, strict=True))
    return "its checksum does not match" if wrong else ""


def _locked(path: Path) -> FileLock:
    """Return the lock of an entry, and create the cache folder if there is none.

    Raises:
        ConfigError: The folder cannot be created, or is not writable.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"data.cache_dir: cannot create {folder} for images ({reason}); {ELSEWHERE}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"data.cache_dir: cannot write images to {folder}; {ELSEWHERE}")
    return FileLock(folder / f".{path.name.removesuffix('.partial')}.lock")


def note(text: str) -> None:
    """Print a line on the terminal's error stream."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)


@dataclass(frozen=True)
class CacheEntry:
    """Files of the cache folder that belong together.

    Attributes:
        name: Name, with which the names of its folders and files begin.
        paths: These folders and files.
        size: Bytes on the disk.
        used: Time of its creation or last use, in seconds since 1970.
        runs: Directories of the runs that used it, the last one first.
        finished: Whether all of it was written.
    """

    name: str
    paths: tuple[Path, ...]
    size: int
    used: float
    runs: tuple[str, ...]
    finished: bool

    @property
    def what(self) -> str:
        """Description of the content."""
        kind = KINDS.get(self.name.partition("-")[0], "images of a custom source")
        return kind if self.finished else f"{kind}, unfinished"


def entries(folder: Path) -> list[CacheEntry]:
    """Return the entries of a cache folder, the largest first; files of other programs are left out."""
    together: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("[!.]*")):
        if (path / "array.npy").exists():
            together.setdefault(path.name.removesuffix(".partial"), []).append(path)
        elif path.is_file() and path.name.startswith("pairs-"):
            together.setdefault(path.stem, []).append(path)
    found = []
    for name, paths in together.items():
        with suppress(FileNotFoundError):  # another process has just finished or removed it
            found.append(_entry(name, paths))
    return sorted(found, key=lambda entry: -entry.size)


def _entry(name: str, paths: Sequence[Path]) -> CacheEntry:
    stats = [file.stat() for path in paths for file in (path.iterdir() if path.is_dir() else [path])]
    uses = []
    for used in (path / "used.jsonl" for path in paths if path.is_dir()):
        for line in used.read_text(encoding="utf-8").splitlines() if used.exists() else ():
            with suppress(ValueError):  # a full disk may have cut it off
                uses.append(json.loads(line))
    runs = dict.fromkeys(use["run"] for use in reversed(uses))
    # Blocks instead of lengths, because an unfinished store has holes.
    size = sum(getattr(each, "st_blocks", -(-each.st_size // 512)) * 512 for each in stats)
    last = max(
        [each.st_mtime for each in stats] + [datetime.fromisoformat(use["when"]).timestamp() for use in uses], default=0
    )
    finished = all(path.suffix != ".partial" for path in paths)
    return CacheEntry(name, tuple(paths), size, last, tuple(runs), finished)


def note_use(stores: Iterable[Path], run: Path) -> None:
    """Record that a run uses stores; a cache that is not writable is skipped."""
    line = json.dumps({"when": datetime.now().isoformat(timespec="seconds"), "run": str(run.absolute())})
    for store in dict.fromkeys(stores):
        with suppress(OSError), (store / "used.jsonl").open("a", encoding="utf-8") as file:  # another user's cache
            file.write(f"{line}\n")


def select(candidates: Sequence[CacheEntry], names: Sequence[str], older: float = 0) -> list[CacheEntry]:
    """Return the entries that match names and have not been used for some days.

    Args:
        candidates: All entries.
        names: ``all``, ``unfinished``, or beginnings of names.
        older: Number of days for which an entry must not have been used.

    Raises:
        DataError: A name matches no entry.
    """
    starts = tuple(name for name in names if name not in ("all", "unfinished"))
    for name in starts:
        if not any(entry.name.startswith(name) for entry in candidates):
            raise DataError(f"--remove {name}: no entry of the cache begins with {name!r}")
    return [
        entry
        for entry in candidates
        if ("all" in names or ("unfinished" in names and not entry.finished) or entry.name.startswith(starts))
        and time.time() - entry.used >= older * 86400
    ]


def remove(entry: CacheEntry) -> bool:
    """Remove an entry and return True, or return False if a process is filling it."""
    lock = entry.paths[0].with_name(f".{entry.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            for path in entry.paths:
                files.remove(path) if path.is_dir() else path.unlink(missing_ok=True)
    except Timeout:
        return False
    lock.unlink(missing_ok=True)
    return True
