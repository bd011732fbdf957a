"""Base class of classifiers: class names, an objective, an optimizer, and Lightning's steps."""

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.core.errors import ConfigError
from fedlit.core.examples import images_of, labels_for
from fedlit.core.objective import Loss, Objective, zero_if_unlabelled
from fedlit.core.scoring import probabilities
from fedlit.core.system.argument_types import Checked
from fedlit.objectives import BCE

Batch = tuple[Tensor, ...] | Mapping[str, Tensor]
"""Images and labels: the first two parts of a tuple, or ``image`` and ``label`` of a dict."""


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
                "your own data module sets as self.classes in __init__"
            )

    def train_with(self, objective: nn.Module | None, optimizer: OptimizerCallable) -> None:
        """Set the loss, by default ``BCE``, and the optimizer, after all layers: a loss's variables follow them."""
        self.objective = BCE() if objective is None else objective
        if isinstance(self.objective, Objective):
            self.objective.build(len(self.classes))
        self.optimizer = optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the objective of a batch."""
        return self._loss(self(images_of(batch)), batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Log the loss and return the logits, which the federation scores per class."""
        logits = self(images_of(batch))
        self.log("loss", self._loss(logits, batch))
        return logits

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        labels = labels_for(logits, batch)
        loss = self.objective(logits, labels)
        return loss if isinstance(self.objective, Loss) else zero_if_unlabelled(loss, logits, labels)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return probabilities [B, C]."""
        return probabilities(self.objective, self(images_of(batch)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer over all trainable parameters."""
        return self.optimizer([p for p in self.parameters() if p.requires_grad])
