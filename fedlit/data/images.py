"""Decoded pictures in one memory-mapped file, and the data set that takes batches from it.

Pictures are decoded and resized once per machine and kept as uint8 in a cache folder. After that every epoch, client
and worker process reads the same pages of memory.
"""

import copy
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

from fedlit.core.devices import constant, to_device
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import cores
from fedlit.core.files import whole
from fedlit.data.cache import intact, seal, sweep
from fedlit.data.opening import no_file, open_picture

# Part of every cache key: raise it when decoding changes, so that old pictures are not taken for new ones.
_FORMAT = "1"
_MAX_FAILURES = 100

ELSEWHERE = "name another folder: --data.cache_dir FOLDER, or XDG_CACHE_HOME in the environment"


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of decoded pictures: ``cache_dir``, ``$XDG_CACHE_HOME/fedlit`` or ``~/.cache/fedlit``."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedlit"
    except RuntimeError as error:  # a user of a container, without a name and without HOME
        raise ConfigError(f"data.cache_dir: this user has no home directory for decoded images; {ELSEWHERE}") from error


def make_cache_folder(folder: Path) -> None:
    """Make the folder of decoded pictures.

    Raises:
        ConfigError: It cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"data.cache_dir: cannot make {folder} for decoded images ({reason}); {ELSEWHERE}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"data.cache_dir: nothing can be written in {folder}, for decoded images; {ELSEWHERE}")


class ImageStore:
    """Pictures as uint8 [N, channels, height, width] in a memory-mapped ``.npy`` file.

    Only the path is pickled, so a worker process maps the file again and shares the pages.

    Args:
        path: An existing ``.npy`` file with a uint8 array of four dimensions.

    Raises:
        ValueError: The file holds another array.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        # A plain array, because each access to the memmap class costs microseconds.
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
        """The store named ``key`` in the cache folder; ``write`` fills it where it is not there yet.

        The file appears under its final name only when it is complete, so a killed run leaves no half store behind. One that
        was damaged since then is made again, with a warning.

        Args:
            key: A name which is different whenever the pixels would be; a hash of all that determines them.
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
        _check_space(folder, shape)
        with whole(path) as draft:
            array = np.lib.format.open_memmap(draft, mode="w+", dtype=np.uint8, shape=tuple(shape))
            write(array)
            array.flush()
            del array
            seal(draft)
        return cls(path)

    @classmethod
    def from_array(cls, array: np.ndarray, cache_dir: str | Path | None = None) -> "ImageStore":
        """Return the store of a uint8 array [N, channels, height, width], cached under a hash of its content."""
        array = np.ascontiguousarray(array)
        if array.dtype != np.uint8 or array.ndim != 4:
            shape = f"{array.dtype} {list(array.shape)}"
            raise ValueError(f"expected uint8 pictures [N, channels, height, width], found {shape}. Convert the array.")
        key = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()[:24]
        return cls.cached(f"array-{key}", array.shape, lambda out: np.copyto(out, array), cache_dir)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all pictures, [N, channels, height, width]."""
        return tuple(self._array.shape)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, indices: int | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """Return a copy of the pictures: uint8 [C, H, W] for one index, [B, C, H, W] for several."""
        return torch.from_numpy(np.take(self._array, np.asarray(indices), axis=0))

    def __reduce__(self):
        return ImageStore, (self.path,)


def decode_images(
    files: Sequence[str | Path], image_size: int, channels: int = 1, cache_dir: str | Path | None = None
) -> ImageStore:
    """Decode and resize image files into a store, or return the store if they were decoded before.

    A picture becomes ``image_size`` x ``image_size`` with antialiasing; other aspect ratios are squeezed. Colour
    becomes grey if ``channels`` is 1, and transparency is dropped. Pictures of more than 8 bits are scaled by the
    smallest of 8, 10, 12, 14 and 16 bits that holds their brightest pixel.

    Args:
        files: The image files, in the order of the store.
        image_size: Height and width of the stored pictures in pixels.
        channels: Number of channels: 1 (grey) or 3 (RGB).
        cache_dir: The cache folder, see ``cache_folder``.

    Raises:
        FileNotFoundError: Files are missing.
        ValueError: Files cannot be decoded, because they are damaged, truncated or no images.
        ConfigError: Some files are DICOM (``.dicom``, ``.dcm``), and pydicom is not installed.
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

        pool = ThreadPoolExecutor(cores())
        bar = {"description": f"Decoding {len(files):,} images", "total": len(files), "transient": True}
        try:
            for failure in track(pool.map(decode, range(len(files))), console=Console(stderr=True), **bar):
                if failure is not None:
                    failures.append(failure)
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
    """Read one image file as uint8 [channels, image_size, image_size] by the rules of ``decode_images``."""
    with open_picture(file) as image:
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


def _eight_bits(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image, dtype=np.float32)
    brightest = pixels.max()
    bits = next((bits for bits in (8, 10, 12, 14, 16) if brightest < 2**bits), None)
    if bits is None or pixels.min() < 0:
        raise ValueError(f"expected pixels of at most 16 bits, found {pixels.min():g} to {brightest:g}")
    return Image.fromarray(np.round(pixels * (255 / (2**bits - 1))).astype(np.uint8))


class LabelledImages(Dataset):
    """Some pictures of a store with their labels: the train, validation or test part of one client.

    Augmentation draws random numbers for each image from torch's default generator. Seed that generator first to get
    equal batches.

    Args:
        store: The decoded pictures.
        indices: Rows of the store, [n].
        labels: Labels of these rows, [n, C], in {0, 1, NaN}.
        names: Unique image ids of these rows, [n].
        in_chans: Number of channels of the float images: grey is repeated, RGB becomes grey.
        augment: A transform of a batch of float images [B, C, H, W] in [0, 1] that draws new parameters for each image,
            see ``fedlit.data.augmentation``; None for no augmentation.
        mean: Mean that is subtracted from the pixels in [0, 1]: one value, or one for each channel.
        std: Standard deviation by which the pixels are divided after that: one value, or one for each channel.
        sites: Organisation of each row, [n]; by default "".
        patients: Patient of each row, [n]; by default "".

    Raises:
        ValueError: Lengths differ, or ``in_chans``, ``mean`` or ``std`` do not fit the pictures.
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
        lengths = [len(self.indices), len(self.labels), len(self.names)]
        if len(set(lengths)) > 1:
            raise ValueError(f"expected as many indices as labels and names, found {', '.join(map(str, lengths))}")
        channels = store.shape[1]
        if in_chans not in (1, channels) and channels != 1:
            raise ValueError(f"pictures of {channels} channels become 1 or {channels}, found in_chans {in_chans}")
        self.in_chans, self.augment = in_chans, augment
        self.mean, self.std = _per_channel("mean", mean, in_chans), _per_channel("std", std, in_chans)
        self._device: torch.device | None = None

    def placed(self, store: ImageStore, device: torch.device) -> "LabelledImages":
        """Return this data set with its pictures in another store, and its batches made on a device."""
        other = copy.copy(self)
        other.store, other._device = store, device
        return other

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Return one image, float32 [in_chans, H, W], and its labels, float32 [C]."""
        images, labels = self.batch([i])
        return images[0], labels[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Return images, float32 [B, in_chans, H, W], and labels, float32 [B, C], of positions in the data set."""
        return self.finish(self.take(indices))

    def take(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures, uint8 [B, C, H, W], and labels, for ``finish``; it draws nothing, so that any thread may call it."""
        positions = np.asarray(indices, dtype=np.int64)
        return self.store[self.indices[positions]], self.labels[torch.from_numpy(positions)]

    def finish(self, taken: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the batch for what ``take`` has returned, augmented and normalised."""
        pictures, labels = taken if self._device is None else (to_device(part, self._device) for part in taken)
        return model_input(pictures, self.in_chans, self.mean, self.std, self.augment), labels


def model_input(
    pictures: Tensor, in_chans: int, mean: Sequence[float], std: Sequence[float], augment: nn.Module | None = None
) -> Tensor:
    """Return the input, float32 [B, in_chans, H, W], for uint8 pictures [B, C, H, W]; see ``LabelledImages``."""
    images = v2.functional.to_dtype(pictures, torch.float32, scale=True)
    if images.shape[1] != in_chans and in_chans == 1:
        images = v2.functional.rgb_to_grayscale(images)
    if augment is not None:
        images = augment(images)
    # torchvision's normalize copies both to the device at each call, and waits.
    centre, spread = (constant(tuple(values), images.device).view(-1, 1, 1) for values in (mean, std))
    return images.expand(-1, in_chans, -1, -1).sub(centre).div_(spread)


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
        try:
            stat = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            missing.append(str(file))
        except OSError:
            missing.append(f"{file} is {no_file(file)}")
        else:
            digest.update(f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(files)} image files are missing:\n  " + "\n  ".join(missing[:5])
            + "\nAdd these files, or remove them from the label file."
        )  # fmt: skip
    return f"images-{image_size}-{digest.hexdigest()[:24]}"


def _check_space(folder: Path, shape: tuple[int, ...]) -> None:
    # Writing to a map on a full disk kills the process by a signal, without a word: ask before.
    need, free = int(np.prod(shape, dtype=np.int64)), shutil.disk_usage(folder).free
    if need > free:
        raise OSError(
            f"{folder}: decoded pictures {list(shape)} need {need / 2**30:.1f} GiB, found {free / 2**30:.1f} GiB free. "
            "Free some space, choose another cache_dir, or a smaller image_size."
        )
