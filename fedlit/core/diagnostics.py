"""Metrics of client drift in a round, from sums: no client's update is inspected on its own."""

import torch
from torch import Tensor

from fedlit.core.flat import Layout
from fedlit.core.messages import Payload


def squares(layout: Layout, change: Tensor, weight: float) -> Tensor:
    """Compute a client's part of the diagnostics: its squared change per group, plain and times its weight.

    Args:
        layout: Layout of the change.
        change: delta_k [P], zero where the client shares nothing.
        weight: pi_k.

    Returns:
        [2 * num_groups]; a payload multiplies it by pi_k again.
    """
    norms = _by_group(layout, change)
    return torch.cat([norms, weight * norms])


def drift_metrics(layout: Layout, total: Payload, sums: Tensor, mean: Tensor, clients: int) -> dict[str, float]:
    """Compute the metrics ``drift/...`` of a round.

    With equal weights and a fully shared model they are

    - ``client_drift``: mean |delta_k|^2 - |mean delta|^2, the spread of the clients' updates;
    - ``alignment``: (K^2 |mean delta|^2 - sum |delta_k|^2) / ((K - 1) sum |delta_k|^2): 1 if all updates are equal, 0
      if they are orthogonal on average, negative if they cancel;
    - ``update_norm``: |mean delta|, before a server learning rate.

    With other weights pi_k the first is the weighted variance, and the second uses pi_k delta_k. An element's mean is
    over its owners.

    Args:
        layout: Layout of the vectors.
        total: Sum of the cohort's payloads.
        sums: Sum of their :func:`squares`.
        mean: mean delta [P].
        clients: K, size of the cohort.
    """
    each, weighted = sums.double().chunk(2)
    owners, norms = total.mask_weight, _by_group(layout, mean).double()
    owned = owners > 0
    spread = torch.where(owned, each / owners, 0.0).sum() - norms.sum()
    metrics = {"drift/client_drift": max(float(spread), 0.0), "drift/update_norm": float(norms.sum().sqrt())}
    separate = float(weighted.sum())
    if clients > 1 and separate > 0:
        metrics["drift/alignment"] = (float((owners**2 * norms).sum()) - separate) / ((clients - 1) * separate)
    return metrics


def _by_group(layout: Layout, vector: Tensor) -> Tensor:
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
