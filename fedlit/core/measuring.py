"""A client's part of a measuring round, with window 0, in which its data and scores are measured without training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedlit.core.batches import BatchStream
from fedlit.core.examples import labels_of, refuse_input
from fedlit.core.labels import check_labels
from fedlit.core.local_model import LocalModel
from fedlit.core.messages import Broadcast, Client, ClientState, Payload, Round
from fedlit.core.module import overrides, step_of
from fedlit.core.objective import Objective
from fedlit.core.randomness import seed_process

TOTALS = "objective/total/"
"""Prefix of an objective's vectors that are summed over clients without weights."""


def objective_of(module: nn.Module) -> Objective | None:
    """Return the module's objective, if it has variables or constants of its own."""
    return next((m for m in module.modules() if isinstance(m, Objective)), None)


def measuring_stream(stream: BatchStream, rnd: Round, client: Client) -> BatchStream:
    """Return the batches of a client's measuring rounds; those of the round with index r follow those of r - 1."""
    return BatchStream(stream.dataset, stream.batch_size, rnd.seed, client.name, "measure", smallest=stream.smallest)


@torch.no_grad()
def measure(
    local: LocalModel, stream: BatchStream, client: Client, state: ClientState, down: Broadcast, rnd: Round
) -> Payload:
    """Run a client's part: forward passes in training mode over a sample of its training set, at the server's weights.

    Raises:
        ConfigError: A label is not 0, 1 or NaN.
        DataError: The scores are not finite, because an example is not.
    """
    seed_process(rnd.seed, "measure", rnd.index, client.name)
    local.adopt(local.mask(client), state, down)
    local.train()
    sample = measuring_stream(stream, rnd, client)
    logits, labels = [], []
    mean, square = torch.zeros_like(local.flat.stats), torch.zeros_like(local.flat.stats)
    count = min(local.training.measure_batches, sample.steps_per_epoch)
    first = rnd.index * count
    with _latest_batch_only(local.module):
        for position in range(first, first + count):
            scored = _score(local, sample[position], position - first)
            if scored is not None:
                logits.append(scored[0])
                labels.append(scored[1])
            if rnd.moments:
                mean += local.flat.stats / count
                square += local.flat.stats**2 / count
    if logits and not torch.cat(logits).isfinite().all():
        indices = torch.cat([sample.indices(position) for position in range(first, first + count)])
        refuse_input(sample.dataset, indices.tolist(), "its scores are not finite")
    vectors = {"mean": mean, "square": square} if rnd.moments else {}
    objective = objective_of(local.module)
    if objective is not None and logits:
        all_labels = stream.labels(len(local.layout.classes)).to(logits[0].device, copy=True)
        check_labels(client.name, all_labels, local.layout.classes)
        seen = torch.cat(labels)
        for name, share in client.stand_ins:
            column = local.layout.classes.index(name)
            seen[:, column] = torch.nan
            known = (~all_labels[:, column].isnan()).nonzero().squeeze(1)  # as many positives as the share asks for
            all_labels[known, column] = (torch.arange(len(known)) < round(share * len(known))).to(all_labels)
        sums = objective.measure(torch.cat(logits), seen, all_labels)
        vectors |= {f"objective/{name}": vector for name, vector in sums.items()}
    weighted = {
        name: (vector.to(local.layout.dtype) * (1.0 if name.startswith(TOTALS) else client.weight)).cpu()
        for name, vector in vectors.items()
    }
    return Payload(weighted, client.weight, client.weight * local.mask(client).owned.double())


@torch.no_grad()
def settle_client(local: LocalModel, stream: BatchStream, client: Client, state: ClientState) -> None:
    """Set the objective's constants of a client that has not trained before; later it has them in its state.

    Raises:
        ConfigError: A label is not 0, 1 or NaN.
    """
    objective = objective_of(local.module)
    if objective is None or state.batches or type(objective).settle_client is Objective.settle_client:
        return
    labels = stream.labels(len(local.layout.classes)).clone()
    check_labels(client.name, labels, local.layout.classes)
    objective.settle_client(labels.to(local.flat.w.device))


def _score(local: LocalModel, batch: object, number: int) -> tuple[Tensor, Tensor] | None:
    """Return logits and labels [B, C] of a batch; None if the module gives no scores per class."""
    classes = len(local.layout.classes)
    moved = local.moved(batch)
    with local.fabric.autocast():
        if not overrides(local.module, "validation_step"):
            step_of(local.module, "training_step")(moved, number)
            return None
        output = step_of(local.module, "validation_step")(moved, number)
    if not torch.is_tensor(output) or output.ndim != 2 or output.shape[1] != classes:
        return None
    return output.to(local.layout.dtype), labels_of(moved, classes).to(local.layout.dtype)


@contextmanager
def _latest_batch_only(module: nn.Module) -> Iterator[None]:
    """Context manager in which running statistics are those of the latest batch."""
    layers = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
