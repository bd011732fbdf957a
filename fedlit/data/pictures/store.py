"""Stores of decoded images: in the cache, views of them, and as one tensor on the device that trains."""

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.filesize import decimal

from fedlit.core.errors import DataError
from fedlit.data.pictures.cache import begin, build, cache_folder, checksum, note, opened
from fedlit.data.pictures.hashes import PARTS, perceptual_hashes
from fedlit.data.pictures.pixels import THUMB

if TYPE_CHECKING:  # imported only if images are read, because the import takes seconds
    import torch
    from torch import Tensor

LARGE = 100 * 10**6
"""Number of bytes from which on path and size of images that do not come from files are printed."""

CHUNK = 2**26
"""Number of bytes that are copied to a device at a time."""


class ImageStore:
    """Images as uint8 [N, channels, height, width] in a memory-mapped array of the cache.

    Only the path is pickled, so a worker process maps the array again and shares the pages.

    Args:
        path: The folder of the array.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        array, self._rows = opened(self.path)
        self._array = np.asarray(array)  # because each access to a memmap costs microseconds

    @classmethod
    def cached(
        cls,
        key: str,
        shape: tuple[int, int, int, int],
        write: Callable[[np.memmap], None],
        cache_dir: str | Path | None = None,
    ) -> "ImageStore":
        """Return the store named ``key`` in the cache folder; ``write`` fills it if it does not exist yet.

        The folder gets its final name only when it is complete. A damaged store is created again, with a warning.

        Args:
            key: A name that changes whenever the pixels change, such as a hash of everything that determines them.
            shape: [N, channels, height, width].
            write: Called with a writable uint8 map of that shape. Its ``filename`` can be mapped by other processes.
            cache_dir: The cache folder, see ``cache_folder``.

        Raises:
            OSError: The cache folder has not enough free space.
        """
        folder = cache_folder(cache_dir) / key

        def fill(draft: Path) -> None:
            if (size := math.prod(shape)) >= LARGE:
                note(f"{shape[0]:,} images take {decimal(size)} in {folder}")
            array, rows = begin(draft, shape, np.uint8)
            write(array)
            rows["sum"] = [checksum(row) for row in array]

        build(folder, shape, np.uint8, fill)
        return cls(folder)

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
        """Folders of the images in the cache."""
        return [self.path]

    @property
    def damaged(self) -> dict[int, str]:
        """The reason for each row whose image is black because its file could not be decoded."""
        noted = self.path / "damaged.json"
        found = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else {}
        return {int(row): reason for row, reason in found.items()}

    def hashes(self) -> np.ndarray:
        """Return the perceptual hashes of each image, [N, 4] uint64; decoding computes those of image files."""
        if self._rows["id"].any():
            return np.array(self._rows["hash"])
        parts = [self[range(start, min(start + 256, len(self)))] for start in range(0, len(self), 256)]
        return np.concatenate([perceptual_hashes(part) for part in parts])

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, indices: "int | Sequence[int] | np.ndarray | Tensor") -> "Tensor":
        """Return a copy of the images: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        import torch

        return torch.from_numpy(np.take(self._array, np.asarray(indices), axis=0))

    def __reduce__(self):
        return ImageStore, (self.path,)


class Thumbs:
    """Thumbnails in a temporary file, all black at first, and their hashes."""

    def __init__(self, count: int) -> None:
        self.shape, self._hashes = (count, 1, THUMB, THUMB), np.zeros((count, len(PARTS)), dtype=np.uint64)
        file = tempfile.TemporaryFile()  # noqa: SIM115  # it must live as long as the map
        self.pictures = np.memmap(file, np.uint8, "w+", shape=(max(count, 1), 1, THUMB, THUMB))

    def put(self, row: int, pixels: np.ndarray) -> None:
        """Store a thumbnail, uint8 [1, 128, 128]."""
        self.pictures[row] = pixels
        self._hashes[row] = perceptual_hashes(pixels[None])[0]

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, indices: np.ndarray) -> "Tensor":
        """Return a copy of some thumbnails, uint8 [B, 1, 128, 128]."""
        import torch

        return torch.from_numpy(np.array(self.pictures[indices]))

    def hashes(self) -> np.ndarray:
        """Return the perceptual hashes of each image, [N, 4] uint64."""
        return self._hashes


class StoreView:
    """Rows of one or several stores, in any order, with repetitions if wanted.

    Args:
        stores: The stores, or thumbnails, all of the same shape. Their rows are counted one store after the other.
        rows: The rows, [n]; by default all.

    Raises:
        ValueError: The shapes differ.
    """

    def __init__(self, stores: "Sequence[ImageStore | Thumbs | StoreView]", rows: np.ndarray | None = None):
        shapes = {store.shape[1:] for store in stores}
        if len(shapes) != 1:
            raise DataError(f"expected one shape of images, found {sorted(shapes)}")
        self.stores, self.starts = list(stores), np.cumsum([0, *map(len, stores)])
        self.rows = np.arange(self.starts[-1]) if rows is None else np.asarray(rows, dtype=np.int64)

    @property
    def path(self) -> Path:
        """A name for these images, next to the first store."""
        digest = hashlib.sha256("\n".join(store.path.name for store in self.stores).encode() + self.rows.tobytes())
        return self.stores[0].path.with_name(f"view-{digest.hexdigest()[:24]}")

    @property
    def paths(self) -> list[Path]:
        """Folders of the images in the cache."""
        return [path for store in self.stores for path in store.paths]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all images, [n, channels, height, width]."""
        return (len(self), *self.stores[0].shape[1:])

    def hashes(self) -> np.ndarray:
        """Return the perceptual hashes of each image, [n, 4] uint64."""
        return np.concatenate([store.hashes() for store in self.stores])[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: "int | Sequence[int] | np.ndarray | Tensor") -> "Tensor":
        """Return a copy of the images: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        import torch

        rows = self.rows[np.asarray(indices, dtype=np.int64)]
        if len(self.stores) == 1:
            return self.stores[0][rows]
        if not rows.ndim:
            return self[np.atleast_1d(indices)][0]
        store_of = np.searchsorted(self.starts, rows, side="right") - 1
        out = torch.empty(len(rows), *self.shape[1:], dtype=torch.uint8)
        for store in np.unique(store_of).tolist():
            here = np.flatnonzero(store_of == store)
            out[torch.from_numpy(here)] = self.stores[store][rows[here] - self.starts[store]]
        return out


class ResidentStore:
    """A copy of a store's images as one uint8 tensor [N, channels, height, width] on a device."""

    def __init__(self, store: ImageStore, device: "torch.device") -> None:
        import torch

        self.path, self.shape = store.path, store.shape
        self._images = torch.empty(store.shape, dtype=torch.uint8, device=device)
        rows = max(1, CHUNK // max(1, math.prod(store.shape[1:])))
        for start in range(0, len(store), rows):
            chunk = np.arange(start, min(start + rows, len(store)))
            self._images[start : start + len(chunk)] = store[chunk]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, indices: "Sequence[int] | np.ndarray | Tensor") -> "Tensor":
        """Return a copy of some images, uint8 [B, C, H, W], on the device."""
        import torch

        from fedlit.core.system.devices import to_device

        rows = torch.from_numpy(np.array(indices, dtype=np.int64))
        return self._images.index_select(0, to_device(rows, self._images.device))
