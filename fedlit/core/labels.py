"""A client's training labels: 0, 1, or NaN if unknown; checked before a local step uses them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlit.core.errors import ConfigError
from fedlit.core.objective import Loss
from fedlit.core.parts import Parts


def labelled_classes(module: nn.Module) -> tuple[str, ...]:
    """Return the classes whose labels [N, C] a module trains on.

    There are none if neither its ``objective`` nor a submodule is a loss of fedlit: then the module may use its targets
    freely.
    """
    parts = Parts.of(module)
    return parts.classes if parts.objective or any(isinstance(part, Loss) for part in module.modules()) else ()


def stored_labels(dataset: object) -> Any:
    """Return a data set's ``labels``, a ``TensorDataset``'s second tensor, or the part of either in a ``Subset``."""
    if type(dataset) is Subset:
        labels = stored_labels(dataset.dataset)
        return labels[dataset.indices] if hasattr(labels, "shape") else None
    return (*dataset.tensors, None)[1] if type(dataset) is TensorDataset else getattr(dataset, "labels", None)


def has_all_labels(dataset: Dataset, classes: Sequence[str]) -> bool:
    """Return whether a data set holds labels [N, C], so that all can be checked before it is used."""
    return getattr(stored_labels(dataset), "shape", None) == (len(dataset), len(classes))


def check_batch(client: str, batch: Any, classes: Sequence[str]) -> None:
    """Refuse labels [B, C] of a fetched batch other than 0, 1 and NaN, if it consists of images and labels."""
    labels = batch[1] if isinstance(batch, list | tuple) and len(batch) == 2 else None
    if torch.is_tensor(labels) and labels.ndim == 2 and labels.shape[1] == len(classes):
        check_labels(client, labels, classes, "images of a batch")


def check_labels(client: str, labels: Tensor, classes: Sequence[str], images: str = "images") -> None:
    """Refuse labels [N, C] other than 0, 1 and NaN."""
    if problem := wrong_labels(client, labels, classes, images):
        raise ConfigError(problem, key="label-not-binary")


def wrong_labels(client: str, labels: Tensor, classes: Sequence[str], images: str = "images") -> str:
    """Describe the first label [N, C] that is not 0, 1 or NaN; "" if there is none."""
    wrong = ~(labels.isnan() | (labels == 0) | (labels == 1))
    if not wrong.any():
        return ""
    row, column = wrong.nonzero()[0].tolist()
    return (
        f"client {client!r}: expected training labels 0, 1 or NaN, found {labels[row, column]:g} for class "
        f"{classes[column]!r} ({wrong.any(1).sum()} of {len(labels)} {images} have such a label). Make it 0 or 1, or "
        "NaN if it is unknown"
    )
