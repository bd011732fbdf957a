"""Base class of classifiers: class names, an objective, an optimizer, and Lightning's steps."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.core.batches import columns
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.objective import Objective
from fedlit.core.scoring import probabilities
from fedlit.core.system.argument_types import Checked
from fedlit.objectives import BCE


class Classifier(Checked, LightningModule):
    """Base class of models whose ``forward`` returns logits [B, C] and whose last layer is named ``head``.

    Args:
        classes: Names of the classes, in the order of the head's rows.

    Raises:
        ConfigError: There are no classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = tuple(classes)
        if not self.classes:
            raise ConfigError(
                "model.classes is empty: expected at least one class name; a model takes those of its data, which "
                "your own data module sets as self.classes in __init__",
                key="model-classes-empty",
            )

    def train_with(self, objective: nn.Module | None, optimizer: OptimizerCallable) -> None:
        """Set the loss, by default ``BCE``, and the optimizer, after all layers: a loss's variables follow them."""
        self.objective = BCE() if objective is None else objective
        if isinstance(self.objective, Objective):
            self.objective.build(len(self.classes))
        self.optimizer = optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the objective of a batch."""
        return self._loss(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Log the loss and return the logits, which the federation scores per class."""
        logits = self(batch[0])
        self.log("loss", self._loss(logits, batch[1]))
        return logits

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        labels = columns(labels, logits.shape[1])
        if labels.shape != logits.shape:
            indices = ", or whole numbers [B], the class of each image" * (logits.shape[1] > 1)
            raise TrainingError(
                f"labels: expected [B, {logits.shape[1]}], a column of 0, 1 or NaN (unknown) for each class of the "
                f"model, {', '.join(self.classes)}{indices}; found {list(labels.shape)}",
                key="label-columns-differ",
            )
        return self.objective(logits, labels)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return probabilities [B, C]."""
        return probabilities(self.objective, self(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer over all trainable parameters."""
        return self.optimizer([p for p in self.parameters() if p.requires_grad])
