"""The data set that takes batches from decoded images.

Images are decoded and resized once per machine (``decoding``) and kept as uint8 in one array of the cache
(``store``). Every epoch, client and worker process then reads the same pages of memory.
"""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

from fedlit.core.errors import DataError
from fedlit.core.system.devices import constant, to_device
from fedlit.data.pictures.cache import cache_folder
from fedlit.data.pictures.decoding import decode_images
from fedlit.data.pictures.pixels import read_image
from fedlit.data.pictures.store import ImageStore, StoreView
from fedlit.data.sampler import Sampler

__all__ = ["ImageStore", "LabelledImages", "cache_folder", "decode_images", "model_input", "read_image"]


class LabelledImages(Dataset):
    """Some images of a store with their labels: the training, validation or test part of one client.

    Augmentation draws random numbers for each image from torch's default generator. Seed that generator first to get
    equal batches.

    Args:
        store: The decoded images.
        indices: Rows of the store, [n].
        labels: Labels of these rows, [n, C], in {0, 1, NaN}.
        names: Unique image ids of these rows, [n].
        in_chans: Number of channels of the float images: grey is repeated, RGB becomes grey.
        augment: A transform of a batch of float images [B, C, H, W] in [0, 1] that draws new parameters for each image,
            see ``fedlit.data.pictures.augmentation``; None for no augmentation.
        mean: Mean that is subtracted from the pixels in [0, 1]: one value, or one for each channel.
        std: Standard deviation by which the pixels are divided after that: one value, or one for each channel.
        sites: Organisation of each row, [n]; by default "".
        patients: Patient of each row, [n]; by default "".
        groups: A map from names such as ``sex`` to the group of each row, [n]; by default there are no groups.

    Raises:
        ValueError: Lengths differ, or ``in_chans``, ``mean`` or ``std`` do not fit the images.
    """

    def __init__(
        self,
        store: ImageStore | StoreView,
        indices: np.ndarray,
        labels: np.ndarray,
        names: np.ndarray,
        in_chans: int = 1,
        augment: nn.Module | None = None,
        mean: float | Sequence[float] = 0.449,
        std: float | Sequence[float] = 0.226,
        sites: np.ndarray | None = None,
        patients: np.ndarray | None = None,
        groups: Mapping[str, np.ndarray] | None = None,
    ):
        self.store = store
        self.indices = np.asarray(indices, dtype=np.int64)
        self.labels = torch.as_tensor(np.asarray(labels, dtype=np.float32))
        self.names = np.asarray(names)
        self.sites = np.full(len(self.names), "") if sites is None else np.asarray(sites)
        self.patients = np.full(len(self.names), "") if patients is None else np.asarray(patients)
        self.groups = dict(groups or {})
        lengths = [len(self.indices), len(self.labels), len(self.names)]
        if len(set(lengths)) > 1:
            raise DataError(f"expected equally many indices, labels, names, found {', '.join(map(str, lengths))}")
        channels = store.shape[1]
        if in_chans not in (1, channels) and channels != 1:
            raise DataError(f"in_chans: expected 1 or {channels}, the channels of the images, found {in_chans}")
        self.in_chans, self.augment = in_chans, augment
        self.mean, self.std = _per_channel("mean", mean, in_chans), _per_channel("std", std, in_chans)
        self.sampler: Sampler | None = None
        self._device: torch.device | None = None

    def placed(self, store: ImageStore | StoreView, device: torch.device) -> "LabelledImages":
        """Return this data set with its images in another store, and its batches on a device."""
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
        """Return images, uint8 [B, C, H, W], and labels, for ``finish``; thread-safe, as it draws nothing."""
        positions = np.asarray(indices, dtype=np.int64)
        return self.store[self.indices[positions]], self.labels[torch.from_numpy(positions)]

    def finish(self, taken: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the augmented and normalised batch for the result of ``take``."""
        pictures, labels = taken if self._device is None else (to_device(part, self._device) for part in taken)
        return model_input(pictures, self.in_chans, self.mean, self.std, self.augment), labels


def model_input(
    pictures: Tensor, in_chans: int, mean: Sequence[float], std: Sequence[float], augment: nn.Module | None = None
) -> Tensor:
    """Return the input, float32 [B, in_chans, H, W], for uint8 images [B, C, H, W]; see ``LabelledImages``."""
    images = v2.functional.to_dtype(pictures, torch.float32, scale=True)
    if images.shape[1] != in_chans and in_chans == 1:
        images = v2.functional.rgb_to_grayscale(images)
    if augment is not None:
        images = augment(images)
    # Not torchvision's normalize, which copies both to the device at each call, and waits.
    centre, spread = (constant(tuple(values), images.device).view(-1, 1, 1) for values in (mean, std))
    return images.expand(-1, in_chans, -1, -1).sub(centre).div_(spread)


def _per_channel(name: str, value: float | Sequence[float], channels: int) -> list[float]:
    values = list(value) if np.ndim(value) else [float(value)] * channels
    if len(values) != channels:
        raise DataError(f"{name}: expected 1 or {channels} (in_chans), found {len(values)}")
    if name == "std" and min(values) <= 0:
        raise DataError(f"std: expected values above 0, found {values}")
    return values
