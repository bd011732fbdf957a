"""Views of data sets to evaluate, and the scores of an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from fedlit.core.errors import TrainingError
from fedlit.core.scoring import Taken
from fedlit.metrics.auroc import ClassAUROC
from fedlit.metrics.tally import Tally


@dataclass(frozen=True)
class View:
    """A data set to evaluate, and the model that scores it: a client's or the federation's.

    Attributes:
        client: Client whose model is used; None for the federation's model.
        holder: Client whose data are used; None for a test set of the server.
        part: ``train``, ``val`` or ``test`` of the holder, or the name of the server's test set.
        method: Method of the module that scores a batch; ``predict_step`` returns probabilities.
        limit: Largest number of examples; None for all.
    """

    client: str | None
    holder: str | None
    part: str
    method: str = "validation_step"
    limit: int | None = None

    def __str__(self) -> str:
        return f"test set {self.part!r}" if self.holder is None else f"{self.part!r} of client {self.holder!r}"


@dataclass
class Scores:
    """Result of an evaluation.

    Attributes:
        view: The view that was evaluated.
        examples: Number of examples.
        scores: [N, C], or None if the module declares no classes. Those of ``validation_step`` are logits. If classes
            exclude each other, they are the log-odds of the probabilities.
        labels: [N, C] in {0, 1, NaN}, or None likewise.
        logged: Means over examples of the values that the module passed to ``self.log``.
        metrics: Logged metrics of torchmetrics, with their accumulated state.
        tally: Histograms that a site sends instead of scores and labels; None otherwise.
        masked: Columns of the classes whose labels count as unknown.
        fewer: Whether the model ranks fewer classes than the federation has learned, so a mean covers other images.
        taken: What the scores were made from, see :data:`Taken`.
    """

    view: View
    examples: int
    scores: Tensor | None
    labels: Tensor | None
    logged: dict[str, float]
    metrics: dict[str, Metric] = field(default_factory=dict)
    tally: Tally | None = None
    masked: frozenset[int] = frozenset()
    fewer: bool = False
    taken: Taken = "own"

    @property
    def ranks(self) -> bool:
        """True if AUROC can be computed."""
        return self.scores is not None or self.tally is not None

    def mask_classes(self, columns: Sequence[bool]) -> None:
        """Set the labels of some classes to unknown."""
        self.masked |= {column for column, masked in enumerate(columns) if masked}
        if self.labels is not None:
            self.labels[:, columns] = torch.nan
        if self.tally is not None:
            self.tally.mask_classes(columns)

    def result(self, classes: Sequence[str]) -> tuple[Tally, ClassAUROC]:
        """Return histograms, AUROC and support of each class; requires ``ranks``."""
        tally = self.tally or Tally.of(self.scores, self.labels, classes)
        return tally, tally.class_auroc(classes)

    def hides(self, column: int) -> bool:
        """Check if a class may have labelled images although no positive or negative is reported."""
        if self.tally is None or column in self.masked:
            return False
        return not (self.tally.positives[column].any() or self.tally.negatives[column].any())


def scores_of(module: LightningModule, method: str, output: Any, rows: int, classes: int) -> Tensor | None:
    """Return a step's output as scores [rows, classes]; None if it has no scores, or no classes are declared.

    Raises:
        TrainingError: The scores have another shape, or are complex.
    """
    if not classes or not torch.is_tensor(output) or output.ndim == 0:
        return None
    if output.shape == (rows, classes) and not output.is_complex():
        return output
    raise TrainingError(
        f"{type(module).__name__}.{method} returned a tensor of shape {tuple(output.shape)}, {output.dtype}; expected "
        f"real scores of shape {(rows, classes)} for {rows} examples and the {classes} classes that it declares, or "
        "None if there is nothing to score"
    )
