"""Logistic regression."""

from collections.abc import Sequence

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.models.steps import Classifier


class LogisticRegression(Classifier):
    """One linear layer, the ``head``, from features [B, D] of a table to logits [B, C].

    Args:
        features: Number D of features of an example.
        classes: Names of the classes, in the order of the head's rows; taken from the data by default.
        objective: The loss, called with (logits, labels); labels are NaN where unknown.
        optimizer: Optimizer of every client's local steps.
        start: Seed of the initial weights alone: they are those of ``torch.manual_seed(start); torch.nn.Linear(D, C)``, from
            which runs of other code may have begun. By default they are drawn from the run's seed.

    Raises:
        ConfigError: There is no class, or no feature.
    """

    def __init__(
        self,
        features: int,
        classes: Sequence[str] = (),
        objective: nn.Module | None = None,
        optimizer: OptimizerCallable = lambda p: torch.optim.SGD(p, lr=0.05),
        start: int | None = None,
    ) -> None:
        super().__init__(classes)
        if features < 1:
            raise ConfigError(f"model.features: expected at least 1, found {features}")
        with torch.random.fork_rng(devices=[], enabled=start is not None):
            if start is not None:
                torch.manual_seed(start)
            self.head = nn.Linear(features, len(self.classes))
        self.train_with(objective, optimizer)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits [B, C] of features [B, D]."""
        if rows.shape[1:] != (self.head.in_features,):
            raise TrainingError(
                f"model.features: the data have {list(rows.shape[1:])} features an example, and the model expects "
                f"{[self.head.in_features]}; set model.features to the number of the data's"
            )
        return self.head(rows)
