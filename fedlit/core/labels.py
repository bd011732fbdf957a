"""A client's training labels: 0, 1, or NaN where the client does not know; examined before a local step sees them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlit.core.errors import ConfigError
from fedlit.core.objective import Loss
from fedlit.core.parts import Parts


def labelled_classes(module: nn.Module) -> tuple[str, ...]:
    """Return the classes whose labels [N, C] a module trains on: none if neither ``objective`` nor a part of it is a loss of them.

    What a module of one's own computes from its targets is then its own affair.
    """
    parts = Parts.of(module)
    return parts.classes if parts.objective or any(isinstance(part, Loss) for part in module.modules()) else ()


def stored_labels(dataset: object) -> Any:
    """What a data set holds as ``labels``, a ``TensorDataset`` as its second tensor, and a ``Subset`` as a part of either's."""
    if type(dataset) is Subset:
        labels = stored_labels(dataset.dataset)
        return labels[dataset.indices] if hasattr(labels, "shape") else None
    return (*dataset.tensors, None)[1] if type(dataset) is TensorDataset else getattr(dataset, "labels", None)


def has_all_labels(dataset: Dataset, classes: Sequence[str]) -> bool:
    """Whether a data set holds labels [N, C], so that all of them can be examined before it is used."""
    return getattr(stored_labels(dataset), "shape", None) == (len(dataset), len(classes))


def wrong_labels(client: str, dataset: Dataset, classes: Sequence[str]) -> str:
    """Say what is wrong with a client's training labels [N, C], where the data set holds them; "" where nothing is."""
    return (
        _problem(client, torch.as_tensor(stored_labels(dataset)), classes)
        if classes and has_all_labels(dataset, classes)
        else ""
    )


def check_batch(client: str, batch: Any, classes: Sequence[str]) -> None:
    """Check the labels [B, C] of a batch that was just fetched, if it is one of images and labels.

    Raises:
        ConfigError: a label is not 0, 1 or NaN.
    """
    labels = batch[1] if isinstance(batch, list | tuple) and len(batch) == 2 else None
    if torch.is_tensor(labels) and labels.ndim == 2 and labels.shape[1] == len(classes):
        check_labels(client, labels, classes, "images of a batch")


def check_labels(client: str, labels: Tensor, classes: Sequence[str], images: str = "images") -> None:
    """Refuse labels [N, C] other than 0, 1 and NaN.

    Raises:
        ConfigError: there are some; says where.
    """
    if found := _problem(client, labels, classes, images):
        raise ConfigError(found)


def _problem(client: str, labels: Tensor, classes: Sequence[str], images: str = "images") -> str:
    """Say which labels [N, C] are other than 0, 1 and NaN, and where; "" where none are."""
    wrong = ~(labels.isnan() | (labels == 0) | (labels == 1))
    if not wrong.any():
        return ""
    row, column = wrong.nonzero()[0].tolist()
    return (
        f"client {client!r}: expected training labels 0, 1 or NaN, found {labels[row, column]:g} for class "
        f"{classes[column]!r} ({wrong.any(1).sum()} of {len(labels)} {images} have such a label). Make it 0 or 1, or NaN "
        "where it is not known"
    )
