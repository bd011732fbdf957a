"""The image classifier: a timm backbone, a linear head, an objective."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import timm
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.errors import ConfigError
from fedlit.objectives import BCE


class ImageClassifier(LightningModule):
    """A multi-label classifier of images [B, in_chans, H, W] into logits [B, C].

    ``body`` (the papers' representation block, any timm backbone without its classifier) and ``head`` (the task
    block, one linear layer with one row a class) are named, so that algorithms can share them differently.

    Args:
        classes: names of the classes, in the order of the head's rows; taken from the data by default.
        backbone: a timm model, for example densenet121 or densenet161.
        in_chans: channels of the images; pretrained weights are adapted to it.
        pretrained: start the body from timm's pretrained weights, fetched from its hub.
        weights: start the body from a local file instead: a checkpoint of the same timm backbone.
        drop_rate: dropout before the head.
        objective: the loss, called with (logits, labels); labels are NaN where unknown.
        optimizer: of every client's local steps.

    Raises:
        ConfigError: no such backbone, no such file, or a file of another backbone.
    """

    def __init__(
        self,
        classes: Sequence[str] = (),
        backbone: str = "densenet121",
        in_chans: int = 1,
        pretrained: bool = False,
        weights: Path | None = None,
        drop_rate: float = 0.0,
        objective: nn.Module | None = None,
        optimizer: OptimizerCallable = lambda p: torch.optim.SGD(p, lr=0.05),
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        if not self.classes:
            raise ConfigError("model.classes is empty: expected at least one class name")
        self.body = _backbone(backbone, in_chans, pretrained, weights)
        self.drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.body.num_features, len(self.classes))
        self.objective = BCE() if objective is None else objective
        self._optimizer = optimizer

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.body(images)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return self.objective(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Log the loss and return the logits, which the federation scores per class."""
        images, labels = batch
        logits = self(images)
        self.log("loss", self.objective(logits, labels))
        return logits

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Probabilities [B, C]."""
        return self(batch[0]).sigmoid()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer(self.parameters())


def _backbone(name: str, in_chans: int, pretrained: bool, weights: Path | None) -> nn.Module:
    if not timm.is_model(name):
        near = ", ".join(get_close_matches(name, timm.list_models(), n=4)) or "none, see timm.list_models()"
        raise ConfigError(f"model.backbone: timm has no {name!r}; near names: {near}")
    options = {"num_classes": 0, "in_chans": in_chans}
    if weights is None:
        return timm.create_model(name, pretrained=pretrained, **options)
    if not Path(weights).is_file():
        raise ConfigError(f"model.weights: no file {weights}")
    try:
        body = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(weights)}, **options)
        found = timm.models.load_state_dict(str(weights))
    except (RuntimeError, KeyError) as error:
        raise ConfigError(f"model.weights: {weights} does not fit {name}: {error}") from error
    # timm leaves out what does not match without an error, so that a file of another model gives a random body.
    wanted = body.state_dict()
    missing = [key for key in wanted if key not in found]
    if len(missing) > len(wanted) // 2:
        raise ConfigError(
            f"model.weights: {weights} does not fit {name}: it lacks {len(missing)} of {len(wanted)} tensors, "
            f"among them {missing[0]}"
        )
    return body
