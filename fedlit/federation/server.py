"""The server's part of a round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlit.core.aggregator import Aggregator
from fedlit.core.diagnostics import drift_metrics
from fedlit.core.errors import TrainingError
from fedlit.core.flat import Layout
from fedlit.core.hooks import check_delta, numbers_of
from fedlit.core.messages import Payload, Round, ServerState, State


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
            raise TrainingError(
                f"round {rnd.index + 1}: the sum of the clients' {name!r} is not finite", key="sum-not-finite"
            )
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
    server.delta = None
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
            means[name] = _scaled(vector, spans)
        elif vector.numel() == layout.stats_size:
            means[name] = vector.mul_(float(share[layout.stats_group]))
        else:
            means[name] = vector.div_(total.weight)
    return means


def _scaled(vector: Tensor, spans: Sequence[tuple[int, int, float]]) -> Tensor:
    """Multiply each segment of a vector [P] by its factor."""
    for start, stop, factor in spans:
        vector[start:stop].mul_(factor)
    return vector
