"""A client's part of the metrics of client drift: sums, so that no client's update is inspected on its own."""

import torch
from torch import Tensor

from fedlit.core.flat import Layout


def squares(layout: Layout, change: Tensor, weight: float) -> Tensor:
    """Compute a client's part of the diagnostics: its squared change per group, plain and times its weight.

    Args:
        layout: Layout of the change.
        change: delta_k [P], zero where the client shares nothing.
        weight: pi_k.

    Returns:
        [2 * num_groups]; a payload multiplies it by pi_k again.
    """
    norms = squared_norms(layout, change)
    return torch.cat([norms, weight * norms])


def squared_norms(layout: Layout, vector: Tensor) -> Tensor:
    """Return squared norms [num_groups]; rows of a tensor with one row per class are computed together."""
    norms = vector.new_zeros(layout.num_groups)
    for entry in layout.parameters:
        if entry.per_class:
            rows = vector[entry.offset : entry.offset + entry.size].view(entry.shape[0], -1)
            norms[entry.group + 1 : entry.group + 1 + len(rows)] += rows.square().sum(1)
    for segment in layout.segments:
        if segment.group % (len(layout.classes) + 1) == 0:  # of no class
            part = vector[segment.start : segment.stop]
            norms[segment.group] += torch.dot(part, part)
    return norms
