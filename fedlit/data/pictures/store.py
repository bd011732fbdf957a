"""Decoded images in one memory-mapped file in the cache folder."""

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.filesize import decimal

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.system.files import whole
from fedlit.data.pictures.cache import append_checksum, intact, sweep
from fedlit.data.pictures.hashes import perceptual_hashes

if TYPE_CHECKING:
    from torch import Tensor

    from fedlit.data.pictures.duplicates import Thumbs

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

        The file gets its final name only when it is complete, so a killed run leaves no partial store behind. A damaged
        store is created again, with a warning.

        Args:
            key: A name that changes whenever the pixels change, such as a hash of everything that determines them.
            shape: [N, channels, height, width].
            write: Called with a writable uint8 map of that shape. Its ``filename`` can be mapped by other processes.
            cache_dir: The cache folder, see ``cache_folder``.

        Raises:
            OSError: The cache folder has not enough free space.
        """
        folder = cache_folder(cache_dir)
        path = folder / f"{key}.npy"
        if intact(path, tuple(shape), np.uint8):
            return cls(path)
        make_cache_folder(folder)
        sweep(folder)
        check_space(folder, shape)
        if (size := math.prod(shape)) >= LARGE:
            Console(stderr=True, highlight=False, soft_wrap=True).print(
                f"{shape[0]:,} images take {decimal(size)} in {path}"
            )
        with whole(path) as draft:
            array = np.lib.format.open_memmap(draft, mode="w+", dtype=np.uint8, shape=tuple(shape))
            write(array)
            array.flush()
            del array
            append_checksum(draft)
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
        if known.exists():
            rows = np.load(known, mmap_mode="r")
            if len(rows) == len(self):
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


def check_space(folder: Path, shape: tuple[int, ...]) -> None:
    """Check that the disk has enough space for images.

    Raises:
        OSError: There is too little; the message names the needed and the free space.
    """
    # Writing to a memory map on a full disk would kill the process by a signal, without a message.
    need, free = math.prod(shape), shutil.disk_usage(folder).free
    if need > free:
        raise OSError(
            f"{folder}: decoded images {list(shape)} need {need / 2**30:.1f} GiB, found {free / 2**30:.1f} GiB free. "
            "Free disk space, or choose another cache_dir or a smaller image_size."
        )
