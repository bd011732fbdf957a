"""Batches of examples: a set of plain tensors makes them at once, with the same values as one by one."""

import pytest
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from fedlit.core.examples import fetch

ROWS, LABELS, CLASSES = torch.randn(9, 4), torch.tensor([0.0, 1.0, torch.nan] * 3)[:, None], torch.arange(9)


class Doubled(TensorDataset):
    """A set of tensors with examples of its own."""

    def __getitem__(self, index):
        rows, labels = super().__getitem__(index)
        return rows * 2, labels


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(ROWS, LABELS),
        TensorDataset(ROWS, CLASSES),
        TensorDataset(ROWS),
        TensorDataset(torch.randn(9, 3, 6, 6).to(memory_format=torch.channels_last), LABELS),
        TensorDataset(ROWS.T.contiguous().T, LABELS),
        Subset(TensorDataset(ROWS, LABELS), [8, 1, 4, 0, 2]),
        Doubled(ROWS, LABELS),
    ],
    ids=["labels", "classes", "no labels", "channels last", "columns", "subset", "subclass"],
)
def test_a_batch_is_that_of_its_examples(dataset):
    order = torch.tensor([4, 0, 2, 2])
    batch, collated = fetch(dataset, order), default_collate([dataset[i] for i in order.tolist()])
    assert type(batch) is type(collated)
    assert len(batch) == len(collated)
    for part, other in zip(batch, collated, strict=True):
        torch.testing.assert_close(part, other, rtol=0, atol=0, equal_nan=True, check_stride=True)
