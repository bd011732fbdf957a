"""Segmentation: three hospitals train MONAI's 2-D U-Net on drawn discs; the best model has the highest Dice.

``pip install monai && python docs/segmentation.py`` takes half a minute. AUROC plays no part: the module has no
``classes``, and logs the Dice itself.
"""

import numpy as np
import torch
from lightning.pytorch import LightningModule
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from torch.utils.data import TensorDataset

import fedlit
from fedlit.aggregators import FedBN
from fedlit.experiment.result import Fitted


class Segmenter(LightningModule):
    """A small U-Net with batch normalisation, the Dice loss, and the Dice of each image as the metric."""

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet(2, in_channels=1, out_channels=1, channels=(8, 16, 32), strides=(2, 2), norm="batch")
        self.loss = DiceLoss(sigmoid=True)

    def training_step(self, batch, batch_idx):
        """Return the Dice loss of a batch of images and masks [B, 1, H, W]."""
        images, masks = batch
        return self.loss(self.net(images), masks)

    def validation_step(self, batch, batch_idx):
        """Log the mean Dice; with the number of images, so that means over batches and clients are over images."""
        images, masks = batch
        dice = DiceMetric()((self.net(images) > 0).float(), masks)
        self.log("dice", dice.mean(), batch_size=len(images))

    def predict_step(self, batch, batch_idx):
        """Return the probability of each pixel [B, 1, H, W]."""
        return self.net(batch[0]).sigmoid()

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def discs(number: int, brightness: float, random: np.random.Generator) -> TensorDataset:
    """Draw noisy images [1, 32, 32], each with one disc, and their masks."""
    rows, columns = np.mgrid[0:32, 0:32]
    centres, radii = random.uniform(8, 24, size=(number, 2, 1, 1)), random.uniform(3, 7, size=(number, 1, 1))
    masks = (rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2 < radii**2
    images = brightness + masks + random.normal(0, 0.5, size=masks.shape)
    return TensorDataset(torch.tensor(images[:, None]).float(), torch.tensor(masks[:, None]).float())


def main() -> Fitted:
    """Train, and print the Dice by round and hospital."""
    random = np.random.default_rng(0)
    hospitals = {
        name: tuple(discs(size, brightness, random) for size in (64, 32, 32))
        for name, brightness in (("north", 0.0), ("south", 1.0), ("east", -1.0))
    }
    torch.manual_seed(0)
    fitted = fedlit.fit(
        Segmenter(), hospitals, aggregators=[FedBN()], rounds=5, batch_size=16, workers=1, experiment="segmentation",
        monitor="val/dice", monitor_mode="max", patience=3,
    )  # fmt: skip
    print(fitted.metrics.filter(regex="dice").round(3))
    return fitted


if __name__ == "__main__":
    print(main().test)
