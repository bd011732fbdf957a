"""A federation of small pictures in stores, and a small model for them."""

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedlit.data.in_memory import GivenClients
from fedlit.data.pictures.images import ImageStore, LabelledImages
from fedlit.models import ImageClassifier

CLASSES = ("a", "b")


class Small(LightningModule):
    """A convolution, BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = CLASSES
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 2))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def network(**options) -> ImageClassifier:
    """A classifier of such pictures."""
    return ImageClassifier(CLASSES, "small_cnn", drop_rate=0.1, **options)


def data(folder, augment: nn.Module | None = None) -> GivenClients:
    """Three clients of one store, the last with a store of its own, and a test set."""
    draw = np.random.default_rng(1)
    shared, own = (
        ImageStore.from_array(draw.integers(0, 256, (n, 1, 12, 12), dtype=np.uint8), folder) for n in (40, 13)
    )

    def images(store: ImageStore, start: int, stop: int, augment: nn.Module | None = None) -> LabelledImages:
        rows = np.arange(start, stop)
        labels = (draw.random((len(rows), 2)) < 0.5).astype(np.float32)
        return LabelledImages(store, rows, labels, np.array([f"{store.path.name}/{row}" for row in rows]), 1, augment)

    clients = {
        "one": (images(shared, 0, 15, augment), images(shared, 15, 20)),
        "two": (images(shared, 20, 30, augment), images(shared, 30, 34)),
        "three": (images(own, 0, 9, augment), images(own, 9, 13)),
    }
    return GivenClients(clients, CLASSES, {"test": images(shared, 34, 40)}, batch_size=4, eval_batch_size=3)
