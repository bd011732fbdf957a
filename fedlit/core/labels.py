"""A client's training labels: 0, 1, or NaN if unknown; checked before a local step uses them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.examples import LABEL, MapDataset, collated, columns, fetch, labels_of, makes_batches, part_of
from fedlit.core.objective import Loss
from fedlit.core.parts import Parts
from fedlit.core.randomness import undisturbed

SAMPLE = 16
"""Number of examples, and of those with positives, that are fetched to compare them with stored labels."""


def labelled_classes(module: nn.Module) -> tuple[str, ...]:
    """Return the classes whose labels [N, C] a module trains on.

    There are none if neither its ``objective`` nor a submodule is a loss of fedlit: then the module may use its targets
    freely.
    """
    parts = Parts.of(module)
    return parts.classes if parts.objective or any(isinstance(part, Loss) for part in module.modules()) else ()


def leaves_out_unknown(module: nn.Module) -> bool:
    """Return whether a module's loss is one of fedlit's, which leave out labels that are NaN."""
    return any(isinstance(part, Loss) and type(part).__module__.startswith("fedlit.") for part in module.modules())


def stored_labels(dataset: object) -> Any:
    """Return a data set's ``labels``, a ``TensorDataset``'s second tensor, or the part of either in a ``Subset``.

    They need not be the labels of the examples, see :func:`all_labels`.
    """
    if type(dataset) is Subset:
        labels = stored_labels(dataset.dataset)
        try:
            return labels[dataset.indices] if hasattr(labels, "shape") else None
        except (IndexError, KeyError, TypeError, ValueError):  # they are not one for each example
            return None
    return (*dataset.tensors, None)[1] if type(dataset) is TensorDataset else getattr(dataset, "labels", None)


def stored_columns(dataset: MapDataset, classes: int) -> Tensor | None:
    """Return a data set's stored labels as float [N, C]; None if it has none, or they are something else."""
    stored = stored_labels(dataset)
    try:
        labels = columns(stored if torch.is_tensor(stored) else torch.as_tensor(np.array(stored)), classes)
    except (TypeError, ValueError, RuntimeError):  # names of the classes, a function, a list of lists
        return None
    return labels.cpu() if labels.shape == (len(dataset), classes) else None


def has_exact_labels(dataset: MapDataset, classes: Sequence[str]) -> bool:
    """Return whether a data set's stored labels are [N, C] and those of its examples, whose code fedlit knows."""
    shape, base = getattr(stored_labels(dataset), "shape", None), dataset
    while type(base) is Subset:
        base = base.dataset
    return shape == (len(dataset), len(classes)) and (type(base) is TensorDataset or makes_batches(base))


def all_labels(dataset: MapDataset, classes: int, fetching: bool = True) -> Tensor | None:
    """Return the labels [N, C] of a whole data set, as its examples have them.

    Its stored labels are used if they are those of the examples: exactly, for data sets whose code fedlit knows, or as
    far as a sample shows. Otherwise all examples are fetched; without ``fetching``, the result is then None.

    Raises:
        DataError: The examples have no labels, or these have another shape.
    """
    stored = stored_columns(dataset, classes)
    if stored is not None and (has_exact_labels(dataset, range(classes)) or agrees(dataset, stored)):
        return stored
    return torch.cat(list(fetched_labels(dataset, torch.arange(len(dataset)), classes))) if fetching else None


def agrees(dataset: MapDataset, labels: Tensor) -> bool:
    """Return whether labels [N, C] are those of a sample of examples, half of it of rows with positives."""
    positive = (labels == 1).any(1).nonzero().flatten()
    rows = torch.cat([_spread(torch.arange(len(labels))), _spread(positive)]).unique()
    try:
        fetched = next(fetched_labels(dataset, rows, labels.shape[1]))
    except DataError:
        return False
    return bool(((fetched == labels[rows]) | (fetched.isnan() & labels[rows].isnan())).all())


def fetched_labels(dataset: MapDataset, rows: Tensor, classes: int, at_once: int = 256) -> Iterator[Tensor]:
    """Yield the labels [n, C] of examples, ``at_once`` together, as they are fetched; no images are kept."""
    for some in rows.split(at_once):
        with undisturbed():
            if makes_batches(dataset):
                batch = fetch(dataset, some)
            else:
                batch = {LABEL: collated([part_of(dataset[row], 1, LABEL) for row in some.tolist()], some.tolist())}
        yield labels_of(batch, classes).cpu()


def _spread(rows: Tensor) -> Tensor:
    return rows[torch.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).long()]


def check_batch(client: str, batch: Any, classes: Sequence[str]) -> None:
    """Refuse labels [B, C] of a fetched batch other than 0, 1 and NaN, if it has any."""
    labels = part_of(batch, 1, LABEL)
    if torch.is_tensor(labels) and labels.ndim == len(classes) == 1:
        labels = labels[:, None]
    if torch.is_tensor(labels) and labels.ndim == 2 and labels.shape[1] == len(classes):
        check_labels(client, labels, classes, "images of a batch")


def check_labels(client: str, labels: Tensor, classes: Sequence[str], images: str = "images") -> None:
    """Refuse labels [N, C] other than 0, 1 and NaN."""
    if problem := wrong_labels(client, labels, classes, images):
        raise ConfigError(problem)


def wrong_labels(client: str, labels: Tensor, classes: Sequence[str], images: str = "images") -> str:
    """Describe the first training label [N, C] that is not 0, 1 or NaN; "" if there is none."""
    wrong = not_binary(labels, classes, images)
    return wrong and f"client {client!r}: expected training labels {wrong}"


def not_binary(labels: Tensor, classes: Sequence[str], images: str = "images") -> str:
    """Describe what was expected of labels [N, C], and the first that is not 0, 1 or NaN; "" if there is none."""
    wrong = ~(labels.isnan() | (labels == 0) | (labels == 1))
    if not wrong.any():
        return ""
    row, column = wrong.nonzero()[0].tolist()
    return (
        f"0, 1 or NaN, found {labels[row, column]:g} for class {classes[column]!r} ({wrong.any(1).sum()} of "
        f"{len(labels)} {images} have such a label). Make it 0 or 1, or NaN if it is unknown"
    )
