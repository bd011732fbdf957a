"""Arrays of the cache folder, each in one memory-mapped file, and stores of decoded images.

``NAME.npy`` is an array, such as images, and ``NAME.rows`` has the checksum of each of its rows, by which damage is
found. Until the array is complete it is ``NAME.partial``. One process at a time writes it, with a lock.
"""

import hashlib
import math
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.filesize import decimal

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.pictures.hashes import PARTS, perceptual_hashes

if TYPE_CHECKING:
    from torch import Tensor

    from fedlit.data.pictures.duplicates import Thumbs

ROW = np.dtype([("id", "<u8"), ("sum", "<u4"), ("hash", "<u8", len(PARTS))])
"""What is known of a row: the identity of its file, its checksum (0 until it is written) and its perceptual hashes."""

CHECKED = 64 * 2**20
"""Number of bytes that are compared with their checksums when an array is opened: of a larger one, rows spread over it,
in less than a second."""

LARGE = 100 * 10**6
"""Number of bytes from which on path and size of images that do not come from files are printed."""

ELSEWHERE = "name another folder: --data.cache_dir FOLDER, or XDG_CACHE_HOME in the environment"


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of decoded images: ``cache_dir``, ``$XDG_CACHE_HOME/fedlit`` or ``~/.cache/fedlit``."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedlit"
    except RuntimeError as error:  # a container's user without a name and without HOME
        raise ConfigError(f"data.cache_dir: this user has no home directory for decoded images; {ELSEWHERE}") from error


def make_cache_folder(folder: Path) -> None:
    """Create the folder of decoded images.

    Raises:
        ConfigError: The folder cannot be created, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"data.cache_dir: cannot create {folder} for images ({reason}); {ELSEWHERE}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"data.cache_dir: cannot write images to {folder}; {ELSEWHERE}")


class ImageStore:
    """Images as uint8 [N, channels, height, width] in a memory-mapped ``.npy`` file.

    Only the path is pickled, so a worker process maps the file again and shares the pages.

    Args:
        path: An existing ``.npy`` file with a uint8 array of four dimensions.

    Raises:
        ValueError: The file holds another array.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        # A plain array, because each access to a memmap costs microseconds.
        self._array = np.asarray(np.load(self.path, mmap_mode="r", allow_pickle=False))
        if self._array.ndim != 4 or self._array.dtype != np.uint8:
            raise DataError(
                f"{self.path}: expected uint8 images [N, channels, height, width], "
                f"found {self._array.dtype} {list(self._array.shape)}. Remove the file; it is created again."
            )

    @classmethod
    def cached(
        cls,
        key: str,
        shape: tuple[int, int, int, int],
        write: Callable[[np.memmap], None],
        cache_dir: str | Path | None = None,
    ) -> "ImageStore":
        """Return the store named ``key`` in the cache folder; ``write`` fills it if it does not exist yet.

        The file gets its final name only when it is complete. A damaged store is created again, with a warning.

        Args:
            key: A name that changes whenever the pixels change, such as a hash of everything that determines them.
            shape: [N, channels, height, width].
            write: Called with a writable uint8 map of that shape. Its ``filename`` can be mapped by other processes.
            cache_dir: The cache folder, see ``cache_folder``.

        Raises:
            OSError: The cache folder has not enough free space.
        """
        path = cache_folder(cache_dir) / f"{key}.npy"
        if damage(path, shape, np.uint8):
            with locked(path):  # another process that needs the same images waits
                if damage(path, shape, np.uint8):
                    if (size := math.prod(shape)) >= LARGE:
                        note(f"{shape[0]:,} images take {decimal(size)} in {path}")
                    warn_of_damage(path, shape, np.uint8)
                    array = begin(path.with_suffix(".partial"), shape, np.uint8)
                    try:
                        write(array)
                        array.flush()
                        finish(path)
                    finally:
                        path.with_suffix(".partial").unlink(missing_ok=True)
        return cls(path)

    @classmethod
    def from_array(cls, array: np.ndarray, cache_dir: str | Path | None = None) -> "ImageStore":
        """Return the store of a uint8 array [N, channels, height, width], cached under a hash of its content."""
        array = np.ascontiguousarray(array)
        if array.dtype != np.uint8 or array.ndim != 4:
            shape = f"{array.dtype} {list(array.shape)}"
            raise DataError(f"expected uint8 images [N, channels, height, width], found {shape}. Convert the array.")
        key = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()[:24]
        return cls.cached(f"array-{key}", array.shape, lambda out: np.copyto(out, array), cache_dir)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all images, [N, channels, height, width]."""
        return tuple(self._array.shape)

    @property
    def paths(self) -> list[Path]:
        """Cache files of the images."""
        return [self.path]

    def hashes(self) -> np.ndarray:
        """Return the perceptual hashes of each image, [N, 4] uint64; decoding computes those of image files."""
        known = self.path.with_suffix(".rows")
        if known.exists() and (rows := np.load(known, mmap_mode="r"))["id"].any():
            return np.array(rows["hash"])
        parts = [self[range(start, min(start + 256, len(self)))] for start in range(0, len(self), 256)]
        return np.concatenate([perceptual_hashes(part) for part in parts])

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, indices: "int | Sequence[int] | np.ndarray | Tensor") -> "Tensor":
        """Return a copy of the images: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        import torch  # only if images are read, because the import takes seconds

        return torch.from_numpy(np.take(self._array, np.asarray(indices), axis=0))

    def __reduce__(self):
        return ImageStore, (self.path,)


class PartOfStore:
    """Some rows of a store, or of thumbnails without files, in any order, with repetitions if wanted."""

    def __init__(self, store: "ImageStore | Thumbs", rows: np.ndarray):
        self.store, self.rows = store, np.asarray(rows, dtype=np.int64)

    @property
    def path(self) -> Path:
        """A name for these images, next to the store."""
        digest = hashlib.sha256(self.rows.tobytes()).hexdigest()[:12]
        return self.store.path.with_name(f"{self.store.path.stem}-part-{digest}")

    @property
    def paths(self) -> list[Path]:
        """Cache files of the images."""
        return self.store.paths

    def hashes(self) -> np.ndarray:
        """Return the perceptual hashes of each image, [n, 4] uint64."""
        return self.store.hashes()[self.rows]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all images, [n, channels, height, width]."""
        return (len(self), *self.store.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: "int | Sequence[int] | np.ndarray | Tensor") -> "Tensor":
        """Return a copy of the images: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        return self.store[self.rows[np.asarray(indices)]]


def checksum(row: np.ndarray) -> int:
    """Return the checksum of a row of an array, which is never 0."""
    return zlib.crc32(np.ascontiguousarray(row)) or 1


def damage(file: Path, shape: tuple[int | None, ...], dtype: type) -> str:
    """Return why an array of the cache cannot be used as text, or "" if it is intact; None in a shape is any length."""
    try:
        array, rows = np.load(file, mmap_mode="r"), np.load(file.with_suffix(".rows"), mmap_mode="r")
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        return f"it cannot be read: {error}"
    fits = len(array.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
    if array.dtype != np.dtype(dtype) or not fits:
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        return f"expected {np.dtype(dtype)} [{expected}], found {array.dtype} {list(array.shape)}"
    if (size := file.stat().st_size) != array.offset + array.nbytes:
        return f"expected {array.offset + array.nbytes:,} bytes, found {size:,}"
    if rows.dtype != ROW or len(rows) != len(array):
        return "it has no checksums"
    count = min(len(array), max(1, CHECKED // max(1, array[:1].nbytes)))
    spread = np.unique(np.linspace(0, len(array) - 1, count).astype(np.int64))
    wrong = any(rows["sum"][row] not in (0, checksum(array[row])) for row in spread)
    return "its checksum does not match" if wrong else ""


def warn_of_damage(file: Path, shape: tuple[int | None, ...], dtype: type) -> None:
    """Warn about an array that is about to be written again; arrays of earlier versions are named once instead."""
    if file.exists() and not is_earlier(file):
        reason = damage(file, shape, dtype)
        warnings.warn(f"{file}: this cache file is damaged ({reason}); it is recreated", stacklevel=3)


def is_earlier(file: Path) -> bool:
    """Return True if an array, finished or not, was written by an earlier version, without a checksum of each row."""
    try:
        return np.load(file.with_suffix(".rows"), mmap_mode="r").dtype != ROW
    except FileNotFoundError:
        return file.suffix == ".npy" and not file.name.startswith("pairs-")  # pairs of images have no checksums
    except (OSError, ValueError, EOFError, SyntaxError):
        return False


def locked(file: Path) -> FileLock:
    """Return the lock of a file of the cache for the process that writes it; earlier versions' files are named once."""
    folder = file.parent
    make_cache_folder(folder)
    if folder not in _NAMED:
        _NAMED.add(folder)
        earlier = [each for kind in ("*.npy", "*.partial") for each in folder.glob(kind) if is_earlier(each)]
        if earlier:
            size = decimal(sum(each.stat().st_size for each in earlier))
            note(f"{folder}: {len(earlier)} files of an earlier version are not used ({size}); remove them with "
                 "`fedlit data cache --remove earlier`")  # fmt: skip
    return FileLock(folder / f".{file.stem}.lock")


_NAMED: set[Path] = set()  # folders whose files of earlier versions were named


def begin(partial: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    """Return a new array, which gets its final name by ``finish``.

    Raises:
        OSError: The disk has not enough free space.
    """
    partial.unlink(missing_ok=True)
    # Writing to a memory map on a full disk would kill the process by a signal, without a message.
    need, free = math.prod(shape) * np.dtype(dtype).itemsize, shutil.disk_usage(partial.parent).free
    if need > free:
        raise OSError(
            f"{partial.parent}: decoded images {list(shape)} need {need / 2**30:.1f} GiB, found {free / 2**30:.1f} GiB "
            "free. Free disk space, or choose another cache_dir or a smaller image_size."
        )
    return np.lib.format.open_memmap(partial, mode="w+", dtype=dtype, shape=tuple(shape))


def finish(file: Path) -> None:
    """Write the checksums of a complete array, and give it its final name."""
    partial = file.with_suffix(".partial")
    array = np.load(partial, mmap_mode="r")
    rows = np.zeros(len(array), ROW)
    rows["sum"] = [checksum(row) for row in array]
    with file.with_suffix(".rows").open("wb") as out:
        np.save(out, rows)
    os.replace(partial, file)


def note(text: str) -> None:
    """Print a line on the terminal's error stream."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)
