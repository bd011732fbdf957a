"""Modules and data that were written without knowledge of fedlit."""

import sys

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fedlit.data import ClientData, FederatedDataModule


class Digits(FederatedDataModule):
    """Three clients of 16 small images with one label of four each, and no names for the labels.

    Args:
        val: whether clients have validation images.
    """

    def __init__(self, val: bool = True) -> None:
        super().__init__(partition=None, batch_size=8)
        self.val = val

    def setup(self, stage: str | None = None) -> None:
        for k in range(3):
            parts = [self._part(10 * k), self._part(10 * k + 1) if self.val else None, None]
            self.clients[f"site-{k}"] = ClientData(f"site-{k}", (), *parts)

    def _part(self, seed: int) -> TensorDataset:
        g = torch.Generator().manual_seed(seed)
        labels = torch.randint(4, (16,), generator=g)
        return TensorDataset(torch.randn(16, 1, 4, 4, generator=g) + labels[:, None, None, None], labels)


class One(Digits):
    """One client with all of its images in one batch."""

    def setup(self, stage: str | None = None) -> None:
        self.clients["site-0"] = ClientData("site-0", (), self._part(0), None, None)
        self.batch_size = 16


class Two(Digits):
    """The first two of the clients."""

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        del self.clients["site-2"]


class Plain(LightningModule):
    """Cross-entropy on integer labels, logging as in Lightning's own examples."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
        self.accuracy = MulticlassAccuracy(4, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images, labels = batch
        logits = self.net(images)
        loss = F.cross_entropy(logits, labels)
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True, prog_bar=True)
        self.log_dict({"cross entropy": loss, "rows": float(len(labels))}, batch_size=len(labels))
        return {"loss": loss}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.log("loss", F.cross_entropy(logits, labels))
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Prefixed(Plain):
    """Logs under names with the prefixes of Lightning's documentation."""

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", 2 * loss)
        self.log("train/double", 2 * loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.accuracy(logits, batch[1])
        self.log("val_acc", self.accuracy)


class Named(Plain):
    """Names its classes, and returns their scores."""

    classes = ("ant", "bee", "cat", "dog")

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        super().validation_step(batch, batch_idx)
        return self.net(batch[0])


class Unvalidated(LightningModule):
    """The smallest module that Lightning's Trainer trains."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, 4)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(Unvalidated):
    """Takes its optimizer's steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class TwoOptimizers(Unvalidated):
    """As for a generative adversarial network."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([p], lr=0.1) for p in self.parameters()]


class Scheduled(Unvalidated):
    """With a learning-rate scheduler."""

    def configure_optimizers(self) -> dict:
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class WarmUp(Unvalidated):
    """Raises the learning rate in ``optimizer_step``."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.param_groups[0]["lr"] = 1e-3 * batch_idx
        optimizer.step(closure=optimizer_closure)


class OwnClipping(Unvalidated):
    """Clips gradients its own way."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_value_(self.parameters(), 0.1)


class Hooked(Unvalidated):
    """Overrides hooks of the Trainer that change no numbers."""

    def on_train_start(self):
        self.seen = 1

    def on_train_epoch_end(self):
        self.seen = 0


class AsksTrainerForItsRate(Unvalidated):
    """Plans its rate over all steps of the Trainer."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.estimated_stepping_batches)


class Lazy(Unvalidated):
    """Learns the width of its first layer from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LazyLinear(4)


class Bug(Unvalidated):
    """Fails with an error of its own."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        raise ValueError("my own mistake")


class Exits(Unvalidated):
    """Ends the process, as a script does."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        sys.exit(0)


class Diverging(Unvalidated):
    """Its loss is NaN in a client's fourth step, of which a buffer keeps count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.steps += 1
        return super().training_step(batch, batch_idx) * (float("nan") if self.steps == 4 else 1.0)
