"""Logistic regression."""

from collections.abc import Sequence

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.core.errors import TrainingError
from fedlit.core.ranges import Count
from fedlit.models.steps import Classifier


class LogisticRegression(Classifier):
    """One linear layer, the ``head``, from features [B, D] of a table to logits [B, C].

    Args:
        features: Number D of features per example.
        classes: Names of the classes, in the order of the head's rows; taken from the data by default.
        objective: The loss, called with (logits, labels); unknown labels are NaN.
        optimizer: Optimizer of every client's local steps.
        start: Seed of only the initial weights: they are those of ``torch.manual_seed(start); torch.nn.Linear(D, C)``,
            to compare with runs of other code. By default they are drawn from the run's seed.

    Raises:
        ConfigError: There are no classes or no features.
    """

    def __init__(
        self,
        features: Count,
        classes: Sequence[str] = (),
        objective: nn.Module | None = None,
        optimizer: OptimizerCallable = lambda p: torch.optim.SGD(p, lr=0.05),
        start: int | None = None,
    ) -> None:
        super().__init__(classes)
        with torch.random.fork_rng(devices=[], enabled=start is not None):
            if start is not None:
                torch.manual_seed(start)
            self.head = nn.Linear(features, len(self.classes))
        self.train_with(objective, optimizer)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [B, C] of features [B, D]."""
        if rows.shape[1:] != (self.head.in_features,):
            raise TrainingError(
                f"model.features: expected {[self.head.in_features]} features per example, found "
                f"{list(rows.shape[1:])}; set model.features to the number of features in the data"
            )
        return self.head(rows)
