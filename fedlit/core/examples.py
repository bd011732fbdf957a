"""Examples of a data set and their digests, and the images and labels of a batch of them.

A batch is a tuple whose first two parts are images and labels, or a dict with ``image`` and ``label``.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedlit.core.errors import DataError
from fedlit.core.randomness import undisturbed

IMAGE, LABEL = "image", "label"
"""Keys of a batch that is a dict; in a tuple, images come first and labels second."""


class MapDataset(Protocol):
    """A map-style data set, such as torch's ``TensorDataset``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def makes_batches(dataset: MapDataset) -> bool:
    """Return whether a data set's ``batch`` and ``labels`` are those of its examples: it is fedlit's, or has no others.

    A subclass elsewhere that has another ``__getitem__`` inherits both, but returns other examples.
    """
    first = next((c for c in type(dataset).__mro__ if not {"batch", "__getitem__"}.isdisjoint(vars(c))), object)
    alone = getattr(type(dataset), "__getitem__", None) in (None, Dataset.__getitem__)
    return "batch" in vars(first) and (alone or first.__module__.startswith("fedlit."))


def fetch(dataset: MapDataset, indices: Tensor) -> Any:
    """Return one batch of examples.

    Raises:
        DataError: Examples cannot be collated; names the first one that does not fit.
    """
    if makes_batches(dataset):
        return dataset.batch(indices)
    if type(dataset) is TensorDataset and all(map(_is_plain, dataset.tensors)):
        return list(dataset[indices])  # what is collated of its examples, without a Python object for each
    return collated([dataset[i] for i in indices.tolist()], indices.tolist())


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and tensor.is_contiguous()


def collated(examples: Sequence[Any], indices: Sequence[int]) -> Any:
    """Return a batch of examples, whose indices are for the error.

    Raises:
        DataError: They cannot be collated; names the first one that does not fit.
    """
    try:
        return default_collate(examples)
    except Exception as error:  # its type depends on what cannot be collated
        raise DataError(_misfit(examples, indices, error)) from error


def images_of(batch: Any) -> Tensor:
    """Return the images of a batch, or the rows of a table; a batch without labels may be a tensor.

    Raises:
        DataError: It has none, or they are not floating-point numbers.
    """
    images = batch if torch.is_tensor(batch) else part_of(batch, 0, IMAGE)
    if torch.is_tensor(images) and images.is_floating_point():
        return images
    found = described(batch) if images is None else described(images)
    scale = "; convert them, as torchvision's v2.ToDtype(torch.float32, scale=True) does" if images is not None else ""
    raise DataError(
        f"images: expected floating-point tensors, the first part of each example or {IMAGE!r} of a dict, found "
        f"{found}{scale}"
    )


def labels_of(batch: Any, classes: int) -> Tensor:
    """Return the labels of a batch as float [B, C].

    Raises:
        DataError: It has none, or they have another shape.
    """
    found = part_of(batch, 1, LABEL)
    if isinstance(found, np.ndarray):
        found = torch.as_tensor(found)
    labels = columns(found, classes) if torch.is_tensor(found) else None
    if labels is not None and labels.shape[1:] == (classes,):
        return labels
    indices = ", or whole numbers [B], the class of each image" * (classes > 1)
    raise DataError(
        f"labels: expected [B, {classes}], a column of 0, 1 or NaN (unknown) for each class{indices}, as the second "
        f"part of each example or {LABEL!r} of a dict; found {described(batch if found is None else found)}"
    )


def labels_for(logits: Tensor, batch: Any) -> Tensor:
    """Return the labels [B, C] of a batch for logits [B, C], in the higher precision of both."""
    labels = labels_of(batch, logits.shape[1])  # PyTorch computes cross-entropy in their precision
    return labels.to(torch.promote_types(labels.dtype, logits.dtype))


def are_indices(labels: Tensor, classes: int) -> bool:
    """Return whether labels are whole numbers [B] or [B, 1], the class of each image."""
    return classes > 1 and not labels.is_floating_point() and labels.shape[1:] in ((), (1,))


def columns(labels: Tensor, classes: int) -> Tensor:
    """Return labels as float [B, C]; class indices become one-hot, and [B] is the column of a single class.

    Raises:
        DataError: An index is outside of the classes.
    """
    if are_indices(labels, classes):
        try:
            return nn.functional.one_hot(labels.long().flatten(), classes).float()
        except RuntimeError:
            wrong = (labels.min() if labels.min() < 0 else labels.max()).item()
            raise DataError(f"labels: expected a class from 0 to {classes - 1}, found {wrong}") from None
    return (labels[:, None] if labels.ndim == classes == 1 else labels).float()


def part_of(batch: Any, place: int, key: str) -> Any:
    """Return a part of a batch by its place in a tuple or its key in a dict; None if there is no such part."""
    if isinstance(batch, Mapping):
        return batch.get(key)
    return batch[place] if isinstance(batch, (list, tuple)) and len(batch) > place else None


def refuse_input(dataset: MapDataset, indices: Sequence[int], effect: str) -> None:
    """Refuse examples with NaN or inf, other than an unknown label.

    Raises:
        DataError: Names the first such example, and its effect.
    """
    with undisturbed():
        for index in indices:
            for place, part in _parts(fetch(dataset, torch.tensor([index]))):
                numbers = torch.is_tensor(part) and (part.is_floating_point() or part.is_complex())
                if numbers and not (part.isfinite() | (part.isnan() & (place in (" 1", f" {LABEL!r}")))).all():
                    raise DataError(
                        f"example {index}: expected finite numbers, found {'nan' if part.isnan().any() else 'inf'} in "
                        f"its part{place}, so {effect}; correct the example, or leave it out"
                    )


def described(value: Any) -> str:
    """Return a short description of an example, a batch or a part of one: its type, with its keys, length or shape."""
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value)) or 'nothing'}"
    if torch.is_tensor(value) or isinstance(value, np.ndarray):
        return f"{list(value.shape)} of {value.dtype}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__module__}.{type(value).__qualname__}"


def _parts(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the places and values of an example, also in tuples and dicts within it."""
    if isinstance(value, Mapping):
        named: Any = ((repr(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        named = enumerate(value)
    else:
        yield place, value
        return
    for name, part in named:
        yield from _parts(part, f"{place} {name}")


def _misfit(examples: Sequence[Any], indices: Sequence[int], error: Exception) -> str:
    """Describe why examples cannot be collated."""
    for index, example in zip(indices, examples, strict=True):
        for place, part in _parts(example):
            try:
                default_collate([part])
            except TypeError:
                return (
                    f"example {index}: expected tensors, arrays or numbers, found {described(part)}"
                    f"{place and f' as its part{place}'}; convert it in __getitem__, as torchvision's ToTensor does "
                    "with pictures, or leave the example out"
                )
    first = [(place, described(part)) for place, part in _parts(examples[0])]
    for index, example in zip(indices, examples, strict=True):
        parts = [(place, described(part)) for place, part in _parts(example)]
        if [place for place, _ in first] != [place for place, _ in parts]:
            there, here = described(examples[0]), described(example)
        elif parts != first:
            place, here = next(each for each, other in zip(parts, first, strict=True) if each != other)
            there = f"{dict(first)[place]} in part{place}"
        else:
            continue
        return (
            f"example {index}: expected the form of example {indices[0]}, {there}, found {here}; give all examples of "
            "a client one form, such as pictures of one size"
        )
    return str(error).partition("\n")[0]


def fetched(dataset: MapDataset, number: int) -> str:
    """Return a digest of an example that is fetched after seeding the default generators, whose states are restored."""
    with undisturbed():
        return digest(fetch(dataset, torch.tensor([number])))


def digest(value: Any) -> str:
    """Return a digest of numbers, also in tuples and dicts; only the class of any other object counts."""
    total = hashlib.sha256()
    _add(total, "", value)
    return total.hexdigest()


def _add(total: Any, name: str, value: Any) -> None:
    if torch.is_tensor(value):
        value = value.detach().cpu().to(torch.float64).numpy()
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            _add(total, f"{name}/{number}", each)
        return
    total.update(f"{name} {type(value).__name__} {getattr(value, 'shape', '')}".encode())
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        total.update(np.asarray(value, dtype=np.float64).tobytes())
