"""The two functions that every engine calls: ``client_round`` and ``server_round``."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fedlit.aggregators.base import Aggregator
from fedlit.data.sampling import BatchStream
from fedlit.errors import TrainingError
from fedlit.flat import Layout
from fedlit.local import LocalModel
from fedlit.measuring import measure
from fedlit.messages import Broadcast, Client, ClientReport, ClientState, Mask, Payload, Round, ServerState, State
from fedlit.metrics.drift import drift_metrics, squares
from fedlit.randomness import seed_process


def client_round(
    local: LocalModel, stream: BatchStream, client: Client, state: ClientState, down: Broadcast, rnd: Round
) -> tuple[Payload, ClientState, ClientReport]:
    """One client's part of a round: ``window`` local steps from the federation's weights; none is a measuring round.

    ``state`` and ``down`` are left as they are; the engine commits the returned state only after the server has
    accepted the payload.

    Raises:
        TrainingError: a loss, or the update, is not finite.
    """
    began, flat = time.perf_counter(), local.flat
    if rnd.window == 0:
        payload = measure(local, stream, client, state, down, rnd)
        seconds = time.perf_counter() - began
        return payload, state, ClientReport(client.name, 0, client.examples, 0.0, seconds, payload.nbytes)
    seed_process(rnd.seed, "round", rnd.index, client.name)
    draws = stream.draws(state.batches)
    window = rnd.window * (stream.steps_per_epoch if rnd.unit == "epochs" else 1)

    contexts = local.begin(client, state, down, rnd, window, draws.next)
    start = flat.w.clone()
    losses = []
    for step in range(window):
        batches = [draws.next() for _ in range(local.batches_per_step)]
        losses.append(local.step(contexts, batches, step))
    loss = _mean_loss(losses, client, rnd)

    change = {"w": torch.sub(flat.w, start, out=start), "stats": flat.stats - down.stats.to(flat.stats.device)}
    payload = _pack(change | local.end(contexts), local.layout, local.mask(client), client, rnd)
    after = local.state(client, state, draws.drawn, contexts)
    seconds = time.perf_counter() - began
    report = ClientReport(client.name, window, client.examples, loss, seconds, payload.nbytes, local.fabric.means())
    return payload, after, report


def server_round(
    aggregators: Sequence[Aggregator], server: ServerState, total: Payload, rnd: Round
) -> dict[str, float]:
    """The server's part: turn the sum of payloads into means, let the aggregators act, move the weights.

    An element's mean is over the clients that own it; where nobody in the cohort does, nothing changes. Returns the
    round's diagnostics, ``drift/...``.

    Raises:
        TrainingError: the sum is not finite; nothing has been changed then.
    """
    for name, vector in total.vectors.items():
        if not torch.isfinite(vector.sum()):
            raise TrainingError(f"round {rnd.index + 1}: the sum of the clients' {name!r} is not finite")
    sums = total.vectors.pop("squares")
    means = _means(total, server)
    server.delta = means.pop("w")
    metrics = drift_metrics(server.layout, total, sums, server.delta, len(rnd.cohort))
    for i, aggregator in enumerate(aggregators):
        own = {k.partition("/")[2]: v for k, v in means.items() if k.startswith(f"{i}/")}
        aggregator.on_aggregate_end(server.aggregators[i], server, own, rnd)
    server.w += server.delta
    server.stats += means["stats"]
    server.delta = None
    for aggregator, state in zip(aggregators, server.aggregators, strict=True):
        if rnd.last_of_stage:
            aggregator.on_stage_end(state, server, rnd)
        metrics |= aggregator.diagnostics(state, server.layout)
    return metrics


def _means(total: Payload, server: ServerState) -> State:
    layout = server.layout
    share = torch.where(total.mask_weight > 0, 1.0 / total.mask_weight, 0.0)
    for vector in total.vectors.values():
        if vector.numel() == layout.size:
            for a, b, factor in layout.spans(share):
                vector[a:b] *= factor
        elif vector.numel() == layout.stats_size:
            vector *= float(share[layout.stats_group])
        else:
            vector /= total.weight
    return dict(total.vectors)


def _pack(vectors: State, layout: Layout, mask: Mask, client: Client, rnd: Round) -> Payload:
    unshared = mask.unshared(layout)
    for name, vector in vectors.items():
        if vector.numel() == layout.size:
            for stretch in unshared:
                vector[stretch] = 0
        elif vector.numel() == layout.stats_size and not mask.shares_stats(layout):
            vector.zero_()
        if not torch.isfinite(vector.sum()):
            raise TrainingError(
                f"client {client.name!r}, round {rnd.index + 1}: its {name!r} is not finite after the local "
                "steps; lower the learning rate, or set federation.gradient_clip"
            )
    vectors["squares"] = squares(layout, vectors["w"], client.weight)
    weighted = {name: vector.mul_(client.weight).cpu() for name, vector in vectors.items()}
    return Payload(weighted, client.weight, client.weight * mask.owned.double())


def _mean_loss(losses: list[Tensor], client: Client, rnd: Round) -> float:
    values = torch.stack(losses).float().cpu()
    if not torch.isfinite(values).all():
        step = int((~torch.isfinite(values)).nonzero()[0])
        raise TrainingError(
            f"client {client.name!r}, round {rnd.index + 1}, local step {step + 1}: the loss is {values[step]}; "
            "lower the learning rate, or set federation.gradient_clip"
        )
    return float(values.mean())
