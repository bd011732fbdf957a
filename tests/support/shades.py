"""Images whose labels follow their brightness, and a frozen model for them."""

from pathlib import Path

import numpy as np
import torch

from fedlit.core.fabric import make_fabric
from fedlit.data import ByPatient
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.images import ImageStore
from fedlit.data.records import Records
from fedlit.models import ImageClassifier

IMAGES, CLASSES = 60, ("dark", "light")


class Shades(FederatedDataModule):
    """Random pictures of two clients, with labels that follow their brightness.

    Args:
        augment: as of any data.
        image_size: pixels.
        cache_dir: of pictures and features.
    """

    classes = CLASSES

    def __init__(self, augment: bool = False, image_size: int = 8, cache_dir: str | None = None) -> None:
        options = {"augment": augment, "image_size": image_size, "cache_dir": cache_dir}
        super().__init__(ByPatient(2), batch_size=4, split=(0.6, 0.2, 0.2), **options)

    def records(self) -> Records:
        rng = np.random.default_rng(0)
        shade = rng.integers(20, 200, (IMAGES, 1, 1, 1))
        pictures = (shade + rng.integers(0, 50, (IMAGES, 1, self.image_size, self.image_size))).astype(np.uint8)
        labels = np.stack([shade.ravel() < 110, shade.ravel() >= 90], 1).astype(np.float32)
        labels[::7, 0] = np.nan
        names = np.array([f"picture-{i:02}" for i in range(IMAGES)])
        sites = np.full(IMAGES, "one")
        store = ImageStore.from_array(pictures, self.cache_dir)
        return Records(store, names, labels, CLASSES, names, sites)


def model(seed: int = 0, **options) -> ImageClassifier:
    torch.manual_seed(seed)
    optimizer = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    return ImageClassifier(CLASSES, backbone="small_cnn", trainable="head", optimizer=optimizer, **options)


def fabric():
    return make_fabric("cpu")


def cached(folder: Path) -> list[Path]:
    return sorted(folder.glob("features-*"))
