"""One client's part of a round, which every engine runs: ``client_round``."""

import math
import time
from itertools import pairwise

import torch
from torch import Tensor

from fedlit.core.batches import BatchStream, Draws, PoissonStream
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.examples import LABEL, part_of, refuse_input
from fedlit.core.flat import Layout
from fedlit.core.labels import leaves_out_unknown
from fedlit.core.local_model import LocalModel
from fedlit.core.measuring import measure, settle_client
from fedlit.core.messages import Broadcast, Client, ClientReport, ClientState, Payload, Round, State
from fedlit.core.randomness import seed_process

SMALLER_STEPS = "lower the learning rate, or set federation.gradient_clip"


def client_round(
    local: LocalModel,
    stream: BatchStream,
    client: Client,
    state: ClientState,
    down: Broadcast,
    rnd: Round,
    into: Tensor | None = None,
) -> tuple[Payload, ClientState, ClientReport]:
    """Run one client's part of a round: ``window`` local steps from the server's weights; 0 is a measuring round.

    ``state`` and ``down`` are left unchanged; the engine commits the returned state only after the server has accepted
    the payload. ``into`` is memory [P] for the payload's ``w``, if no hook can get hold of it.

    Raises:
        ConfigError: A measuring round is asked for, and steps are private.
        TrainingError: A loss, or the update, is not finite.
        DataError: A loss is not finite, because an example is not.
    """
    began = time.perf_counter()
    if rnd.window == 0:
        if stream.private:
            raise ConfigError(f"client {client.name!r}: a measuring round reads images without noise; leave it out")
        payload = measure(local, stream, client, state, down, rnd)
        seconds = time.perf_counter() - began
        return payload, state, ClientReport(client.name, 0, client.examples, 0.0, seconds, payload.nbytes)
    seed_process(rnd.seed, "round", rnd.index, client.name)
    window = rnd.window * (stream.steps_per_epoch if rnd.unit == "epochs" else 1)
    draws = Draws(stream, state.batches, window * local.batches_per_step)
    if isinstance(stream, PoissonStream):
        stream.ask(client, state, down, rnd)

    local.count(state.batches, stream)
    contexts = local.begin(client, state, down, rnd, window, draws.next)
    settle_client(local, stream, client, state)
    rates = [float(rate) * rnd.lr_factor for rate in local.optimizer.plain]
    losses, starts = [], []
    for step in range(window):
        starts.append(state.batches + draws.drawn)
        local.count(state.batches + draws.drawn, stream)
        local.optimizer.follow(*local.fabric.counts)
        if (state.batches + draws.drawn) % stream.steps_per_epoch == 0:
            local.hooks.call("on_train_epoch_start")
        batches = [draws.next() for _ in range(local.batches_per_step)]
        losses.append(local.step(contexts, batches, step))
    used = [range(*pair) for pair in pairwise([*starts, state.batches + draws.drawn])]
    loss = math.nan if stream.private else _mean_loss(losses, local, stream, used, client, rnd)
    local.flat.check_parameters()
    still = "" if stream.private else local.stalled()

    vectors = local.end(contexts, down, into)
    encoded = local.encoded(contexts, vectors["w"])
    payload = _pack(local, vectors, client, rnd)
    after = local.state(client, state, draws.drawn, contexts)
    seconds = time.perf_counter() - began
    sent = payload.nbytes_sent(local.mask(client), local.layout) - encoded
    logged = {} if stream.private else {"logged": local.fabric.means(), "metrics": local.fabric.taken()}
    report = ClientReport(client.name, window, client.examples, loss, seconds, sent, **logged, still=still, rates=rates)
    return payload, after, report


def _pack(local: LocalModel, vectors: State, client: Client, rnd: Round) -> Payload:
    layout, mask = local.layout, local.mask(client)
    unshared = mask.unshared(layout)
    for vector in vectors.values():
        if vector.numel() == layout.size:
            for segment in unshared:
                vector[segment] = 0
        elif vector.numel() == layout.stats_size and not mask.shares_stats(layout):
            vector.zero_()
    sums = [vector.sum().to(vectors["w"].device, torch.float64) for vector in vectors.values()]
    finite = torch.stack(sums).isfinite().tolist()  # waits once for the device
    if not all(finite):
        where = f"client {client.name!r}, round {rnd.index + 1}"
        number, _, name = (first := list(vectors)[finite.index(False)]).partition("/")
        if name:  # the weights come first, and are finite
            hook = f"{type(local.aggregators[int(number)]).__name__}.on_client_round_end"
            raise TrainingError(f"{where}: {name!r} of {hook} is not finite, although its weights are")
        raise TrainingError(f"{where}: its {first!r} is not finite after the local steps; {SMALLER_STEPS}")
    vectors["squares"] = squares(layout, vectors["w"], client.weight)
    weighted = {name: vector.mul_(client.weight) for name, vector in vectors.items()}
    return Payload(weighted, client.weight, client.weight * mask.owned.double())


def _mean_loss(
    losses: list[Tensor], local: LocalModel, stream: BatchStream, used: list[range], client: Client, rnd: Round
) -> float:
    """Return the mean of the steps' losses; ``used`` has the positions of the batches of each step."""
    values = torch.stack(losses).to(local.layout.dtype).cpu()
    mean = float(values.mean())
    if not math.isfinite(mean) and not torch.isfinite(values).all():
        step = int((~torch.isfinite(values)).nonzero()[0])
        where, what = f"round {rnd.index + 1}, local step {step + 1}", f"the loss is {values[step]}"
        indices = torch.cat([stream.indices(position) for position in used[step]])
        refuse_input(stream.dataset, indices.tolist(), f"{what} in {where}")
        labels = [part_of(stream[position], 1, LABEL) for position in used[step]]
        unknown = any(torch.is_tensor(each) and each.isnan().any() for each in labels)
        advice = SMALLER_STEPS
        if unknown and not leaves_out_unknown(local.module):
            advice = f"leave unknown labels (NaN) out of the loss, as fedlit's objectives do, or {advice}"
        raise TrainingError(f"client {client.name!r}, {where}: {what}; {advice}")
    return mean


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
