"""Decoded pictures in one memory-mapped file, and the data set that cuts batches out of it.

Pictures are decoded and resized once per machine and kept as uint8 in a cache folder; every epoch, client and
worker process after that reads the same pages of memory.
"""

import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

from fedlit.data.dicom import SUFFIXES, read_dicom
from fedlit.errors import ConfigError

# Part of every cache key: raise it when decoding changes, so that old pictures are not taken for new ones.
_FORMAT = "1"
_MAX_FAILURES = 100
_STALE_SECONDS = 24 * 3600


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The folder of decoded pictures: `cache_dir`, else `$XDG_CACHE_HOME/fedlit`, else `~/.cache/fedlit`."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedlit"


class ImageStore:
    """Pictures as uint8 [N, channels, height, width] in a memory-mapped `.npy` file.

    It pickles as its path: a worker process maps the file again and shares the pages.

    Args:
        path: An existing `.npy` file with a uint8 array of four dimensions.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        # As a plain array: indexing the memmap class costs microseconds of Python each time.
        self._array = np.asarray(np.load(self.path, mmap_mode="r", allow_pickle=False))
        if self._array.ndim != 4 or self._array.dtype != np.uint8:
            raise ValueError(
                f"{self.path}: expected uint8 pictures [N, channels, height, width], "
                f"found {self._array.dtype} {list(self._array.shape)}. Remove the file; it is made again."
            )

    @classmethod
    def cached(
        cls,
        key: str,
        shape: tuple[int, int, int, int],
        write: Callable[[np.memmap], None],
        cache_dir: str | Path | None = None,
    ) -> "ImageStore":
        """The store named `key` in the cache folder; `write` fills it where it is not there yet.

        The file appears under its final name only when it is complete, so a killed run leaves no half store
        behind.

        Args:
            key: A name which is different whenever the pixels would be; a hash of all that determines them.
            shape: [N, channels, height, width].
            write: Called with a writable uint8 map of that shape. Its `filename` can be mapped by other
                processes.
            cache_dir: The cache folder, see `cache_folder`.

        Raises:
            OSError: The cache folder has not enough free space.
        """
        folder = cache_folder(cache_dir)
        path = folder / f"{key}.npy"
        if path.exists():
            try:
                store = cls(path)
            except (ValueError, EOFError):
                store = None
            if store is not None and store.shape == tuple(shape):
                return store
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        _check_space(folder, shape)
        draft = folder / f".{key}.{socket.gethostname()}.{os.getpid()}.tmp"
        try:
            array = np.lib.format.open_memmap(draft, mode="w+", dtype=np.uint8, shape=tuple(shape))
            write(array)
            array.flush()
            del array
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        return cls(path)

    @classmethod
    def from_array(cls, array: np.ndarray, cache_dir: str | Path | None = None) -> "ImageStore":
        """The store of a uint8 array [N, channels, height, width], cached under a hash of its content."""
        array = np.ascontiguousarray(array)
        if array.dtype != np.uint8 or array.ndim != 4:
            raise ValueError(
                "expected uint8 pictures [N, channels, height, width], "
                f"found {array.dtype} {list(array.shape)}. Convert the array first."
            )
        key = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()[:24]

        def write(out: np.memmap) -> None:
            out[:] = array

        return cls.cached(f"array-{key}", array.shape, write, cache_dir)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return tuple(self._array.shape)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, indices: int | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """A copy of the pictures: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        return torch.from_numpy(np.take(self._array, np.asarray(indices), axis=0))

    def __reduce__(self):
        return ImageStore, (self.path,)

    def __repr__(self) -> str:
        return f"ImageStore({str(self.path)!r}, shape={self.shape})"


def decode_images(
    files: Sequence[str | Path],
    image_size: int,
    channels: int = 1,
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImageStore:
    """Decodes and resizes image files into a store, or finds the store where they were decoded before.

    A picture becomes `image_size` x `image_size` with antialiasing (other aspect ratios are squeezed). Colour
    becomes grey where `channels` is 1, transparency is dropped. Pictures of more than 8 bits are scaled by
    the smallest of 8, 10, 12, 14 and 16 bits that holds their brightest pixel.

    Args:
        files: The image files, in the order of the store.
        image_size: Height and width of the stored pictures in pixels.
        channels: 1 (grey) or 3 (RGB).
        cache_dir: The cache folder, see `cache_folder`.
        workers: Threads that decode; by default the cores of this process.
        progress: Called with (files done, files in all); by default a progress bar on the terminal.

    Raises:
        FileNotFoundError: Files are missing.
        ValueError: Files cannot be decoded: damaged, truncated or no images.
        ConfigError: Some are DICOM (`.dicom`, `.dcm`) and pydicom is not installed.
    """
    files = [Path(file) for file in files]
    key = _files_key(files, image_size, channels)

    def write(out: np.memmap) -> None:
        failures: list[str] = []

        def decode(row: int) -> str | None:
            if len(failures) >= _MAX_FAILURES:
                return None
            try:
                out[row] = read_image(files[row], image_size, channels)
            except ConfigError:  # no fault of this file
                raise
            except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
                return f"{files[row]}: {error}"
            return None

        pool = ThreadPoolExecutor(workers or _cores())
        try:
            with _reporting(progress, len(files)) as report:
                for done, failure in enumerate(pool.map(decode, range(len(files))), start=1):
                    if failure is not None:
                        failures.append(failure)
                    report(done, len(files))
        finally:
            # Not as a context manager: after Ctrl-C that would decode all the other files before it lets go.
            pool.shutdown(cancel_futures=True)
        if failures:
            count = f"{len(failures)}{' or more' if len(failures) >= _MAX_FAILURES else ''}"
            raise ValueError(
                f"{count} of {len(files)} image files cannot be decoded (damaged or no images):\n  "
                + "\n  ".join(failures[:5])
                + "\nReplace these files, or remove them, from the label file too where there is one."
            )

    return ImageStore.cached(key, (len(files), channels, image_size, image_size), write, cache_dir)


def read_image(file: str | Path | BinaryIO, image_size: int, channels: int = 1) -> np.ndarray:
    """One image file as uint8 [channels, image_size, image_size]; see `decode_images` for the rules."""
    with _open(file) as image:
        image.load()
        if image.mode.startswith("I"):
            image = _eight_bits(image)
        elif image.mode == "F":
            raise ValueError("expected integer pixels, found floating point: convert the file to 8 or 16 bits")
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (image_size, image_size):
            image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)


def _open(file: str | Path | BinaryIO) -> Image.Image:
    return read_dicom(file) if getattr(file, "suffix", "").lower() in SUFFIXES else Image.open(file)


def _eight_bits(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image, dtype=np.float32)
    brightest = pixels.max()
    bits = next((bits for bits in (8, 10, 12, 14, 16) if brightest < 2**bits), None)
    if bits is None or pixels.min() < 0:
        raise ValueError(f"expected pixels of at most 16 bits, found {pixels.min():g} to {brightest:g}")
    return Image.fromarray(np.round(pixels * (255 / (2**bits - 1))).astype(np.uint8))


class LabelledImages(Dataset):
    """Some pictures of a store with their labels: one client's train, validation or test part.

    Random augmentation is drawn from torch's default generator, image by image: a torchvision transform that
    is given a batch would draw one set of parameters for all of it. Whoever wants equal batches seeds that
    generator first.

    Args:
        store: The decoded pictures.
        indices: Rows of the store, [n].
        labels: Labels of these rows, [n, C], in {0, 1, NaN}.
        names: Unique image ids of these rows, [n].
        in_chans: Channels of the float images: grey is repeated, RGB becomes grey.
        augment: A transform of a batch of float images [B, C, H, W] in [0, 1] that treats each by itself, see
            `fedlit.data.augmentation`; None to leave images alone.
        mean: Subtracted from the pixels in [0, 1], one value or one a channel.
        std: Divides them after that, one value or one a channel.
        sites: Organisation of each row, [n]; by default all are of one.
        patients: Patient of each row, [n]; "" by default.
    """

    def __init__(
        self,
        store: ImageStore,
        indices: np.ndarray,
        labels: np.ndarray,
        names: np.ndarray,
        in_chans: int = 1,
        augment: nn.Module | None = None,
        mean: float | Sequence[float] = 0.449,
        std: float | Sequence[float] = 0.226,
        sites: np.ndarray | None = None,
        patients: np.ndarray | None = None,
    ):
        self.store = store
        self.indices = np.asarray(indices, dtype=np.int64)
        self.labels = torch.as_tensor(np.asarray(labels, dtype=np.float32))
        self.names = np.asarray(names)
        self.sites = np.full(len(self.names), "") if sites is None else np.asarray(sites)
        self.patients = np.full(len(self.names), "") if patients is None else np.asarray(patients)
        if not len(self.indices) == len(self.labels) == len(self.names):
            raise ValueError(
                "expected as many indices as labels and names, "
                f"found {len(self.indices)}, {len(self.labels)} and {len(self.names)}"
            )
        channels = store.shape[1]
        if in_chans not in (1, channels) and channels != 1:
            raise ValueError(f"pictures of {channels} channels become 1 or {channels}, found in_chans {in_chans}")
        self.in_chans = in_chans
        self.augment = augment
        self.mean = _per_channel("mean", mean, in_chans)
        self.std = _per_channel("std", std, in_chans)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """One image float32 [in_chans, H, W] and its labels float32 [C]."""
        images, labels = self.batch([i])
        return images[0], labels[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [B, in_chans, H, W] and labels float32 [B, C] of these positions of the data set."""
        positions = np.asarray(indices, dtype=np.int64)
        pictures = self.store[self.indices[positions]]
        images = model_input(pictures, self.in_chans, self.mean, self.std, self.augment)
        return images, self.labels[torch.from_numpy(positions)]


def model_input(
    pictures: Tensor, in_chans: int, mean: Sequence[float], std: Sequence[float], augment: nn.Module | None = None
) -> Tensor:
    """What a model is given of uint8 pictures [B, C, H, W]: float32 [B, in_chans, H, W]; see `LabelledImages`."""
    images = v2.functional.to_dtype(pictures, torch.float32, scale=True)
    if images.shape[1] != in_chans and in_chans == 1:
        images = v2.functional.rgb_to_grayscale(images)
    if augment is not None:
        images = augment(images)
    return v2.functional.normalize(images.expand(-1, in_chans, -1, -1), mean, std)


def _per_channel(name: str, value: float | Sequence[float], channels: int) -> list[float]:
    values = list(value) if np.ndim(value) else [float(value)] * channels
    if len(values) != channels:
        raise ValueError(f"{name}: expected one value or {channels} (in_chans), found {len(values)}")
    if name == "std" and min(values) <= 0:
        raise ValueError(f"std: expected values above 0, found {values}")
    return values


def _files_key(files: list[Path], image_size: int, channels: int) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {image_size} {channels}\n".encode())
    missing = []
    for file in files:
        path = file.absolute()
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            missing.append(file)
            continue
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(files)} image files are missing:\n  "
            + "\n  ".join(str(file) for file in missing[:5])
            + "\nAdd these files, or remove them from the label file."
        )
    return f"images-{image_size}-{digest.hexdigest()[:24]}"


def _check_space(folder: Path, shape: tuple[int, ...]) -> None:
    # Writing to a map on a full disk kills the process by a signal, without a word: ask before.
    need, free = int(np.prod(shape, dtype=np.int64)), shutil.disk_usage(folder).free
    if need > free:
        raise OSError(
            f"{folder}: decoded pictures {list(shape)} need {need / 2**30:.1f} GiB, "
            f"found {free / 2**30:.1f} GiB free. "
            "Free some space, choose another cache_dir, or a smaller image_size."
        )


def _remove_stale(folder: Path) -> None:
    for draft in folder.glob(".*.tmp"):
        try:
            if time.time() - draft.stat().st_mtime > _STALE_SECONDS:
                draft.unlink()
        except FileNotFoundError:
            continue


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _reporting(progress: Callable[[int, int], None] | None, total: int) -> Iterator[Callable[[int, int], None]]:
    if progress is not None:
        yield progress
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"Decoding {total:,} images", total=total)
        yield lambda done, _: bar.update(task, completed=done)
