"""The server's part of a round and of a measuring round."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import TrainingError
from fedlit.core.flat import FlatModel, Layout
from fedlit.core.hooks import check_delta, numbers_of
from fedlit.core.measuring import TOTALS, objective_of
from fedlit.core.messages import Measured, Payload, Round, ServerState, State, stripped
from fedlit.core.rounds import squared_norms


def server_round(
    aggregators: Sequence[Aggregator], server: ServerState, total: Payload, rnd: Round
) -> dict[str, float]:
    """Compute means of the clients' payloads, call the aggregators, and update the weights.

    The mean of an element is over the clients that own it; elements without an owner in the cohort do not change.

    Args:
        aggregators: The federation's algorithms, in list order.
        server: State of the server, which is changed.
        total: Sum of the cohort's payloads, or what an aggregator reduced them to; its memory is reused for the means.
        rnd: The round.

    Returns:
        The round's diagnostics, ``drift/...``.

    Raises:
        TrainingError: The sum is not finite; nothing is changed.
    """
    for name, vector in total.vectors.items():
        if not torch.isfinite(vector.sum()):
            raise TrainingError(f"round {rnd.index + 1}: the sum of {name!r} is not finite")
    sums = total.vectors.pop("squares")
    means = _means(server.layout, total)
    server.delta = means.pop("w")
    metrics = drift_metrics(server.layout, total, sums, server.delta, len(rnd.cohort))
    for i, aggregator in enumerate(aggregators):
        mean = {name.partition("/")[2]: v for name, v in means.items() if name.startswith(f"{i}/")}
        aggregator.on_aggregate_end(server.aggregators[i], server, mean, rnd)
        check_delta(aggregator, server.delta, server.w, server.aggregators[i])
    server.w += server.delta
    server.stats += means["stats"]
    del server.delta
    for aggregator, state in zip(aggregators, server.aggregators, strict=True):
        if rnd.last_of_stage:
            aggregator.on_stage_end(state, server, rnd)
        metrics |= numbers_of(aggregator, state, server.layout)
    return metrics


def _means(layout: Layout, total: Payload) -> State:
    """Return means, in the memory of the sums: [P] over the owners of each element, [S] over clients that share it."""
    share = torch.where(total.mask_weight > 0, 1.0 / total.mask_weight, 0.0)
    spans, means = layout.spans(share), {}
    for name, vector in total.vectors.items():
        if vector.numel() == layout.size:
            for start, stop, factor in spans:
                vector[start:stop].mul_(factor)
            means[name] = vector
        elif vector.numel() == layout.stats_size:
            means[name] = vector.mul_(float(share[layout.stats_group]))
        else:
            means[name] = vector.div_(total.weight)
    return means


def drift_metrics(layout: Layout, total: Payload, sums: Tensor, mean: Tensor, clients: int) -> dict[str, float]:
    """Compute the metrics ``drift/...`` of a round of K clients, from the sum of their payloads and of their squares.

    With equal weights and a fully shared model they are

    - ``client_drift``: mean |delta_k|^2 - |mean delta|^2, the spread of the clients' updates;
    - ``alignment``: (K^2 |mean delta|^2 - sum |delta_k|^2) / ((K - 1) sum |delta_k|^2): 1 if all updates are equal, 0
      if they are orthogonal on average, negative if they cancel;
    - ``update_norm``: |mean delta|, before a server learning rate.

    With other weights pi_k the first is the weighted variance, and the second uses pi_k delta_k. An element's mean is
    over its owners.
    """
    each, weighted = sums.double().chunk(2)
    owners, norms = total.mask_weight, squared_norms(layout, mean).double()
    owned = owners > 0
    spread = torch.where(owned, each / owners, 0.0).sum() - norms.sum()
    metrics = {"drift/client_drift": max(float(spread), 0.0), "drift/update_norm": math.sqrt(norms.sum())}
    separate = float(weighted.sum())
    if clients > 1 and separate > 0:
        metrics["drift/alignment"] = (float((owners**2 * norms).sum()) - separate) / ((clients - 1) * separate)
    return metrics


def conclude(model: FlatModel, server: ServerState, total: Payload, start: bool = False) -> Measured:
    """Run the server's part of a measuring round, on its own model; the server's state is left unchanged.

    At the ``start`` of a run the objective is initialised as its options say; later its variables are set to their
    optimum.
    """
    means = {n: vector if n.startswith(TOTALS) else vector / total.weight for n, vector in total.vectors.items()}
    model.load(server.w, server.stats)
    objective = objective_of(model.module)
    measured = stripped(means, "objective/")
    if objective is not None and measured:
        (objective.settle if start else objective.optimise)(measured)
    stats = model.stats.cpu().clone()
    moments = (means["mean"], means["square"]) if "mean" in means else None
    normalisation = _normalisation(server.layout, stats, *moments) if moments else None
    return Measured(model.w.cpu().clone(), stats, normalisation)


def _normalisation(layout: Layout, stats: Tensor, means: Tensor, squares: Tensor) -> Tensor:
    """Return statistics [S] with BatchNorm's mean and variance, from means [S] of batch statistics and squares."""
    normalisation = stats.clone()
    entries = {entry.name: entry for entry in layout.buffers}
    for name, entry in entries.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == "running_mean":
            mean, spread = entry.view(means), entries[f"{layer}.running_var"]
            entry.view(normalisation).copy_(mean)
            between = entry.view(squares) - mean**2
            spread.view(normalisation).copy_(spread.view(means) + between)
    return normalisation
