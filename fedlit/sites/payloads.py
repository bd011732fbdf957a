"""What messages carry beside their fields: payloads, the tensors of a module, rounds and clients."""

from dataclasses import asdict
from typing import Any

import torch

from fedlit.core.messages import Client, ClientReport, Payload, Round, State
from fedlit.sites.envelope import Damaged, Envelope
from fedlit.sites.messages import Sent

MASK, VECTORS = "mask_weight", "vectors/"
"""Names of a payload's arrays."""


MODULE = "module/"
"""Beginning of the names of a module's arrays."""


def module_tensors(state: State) -> State:
    """Give the tensors of a module as one array for each type of numbers, in their order: names of hundreds fill a header."""
    kinds = dict.fromkeys(tensor.dtype for tensor in state.values())
    return {
        f"{MODULE}{str(kind).removeprefix('torch.')}": torch.cat(
            [tensor.detach().cpu().reshape(-1) for tensor in state.values() if tensor.dtype == kind]
        )
        for kind in kinds
    }


def module_state(tensors: State, like: State) -> State:
    """Read the tensors of a module by the names and shapes of one that was made of the same configuration.

    Raises:
        ValueError: It has another number of values of some type.
    """
    wanted = {name: len(array) for name, array in module_tensors(like).items()}
    found = {name: len(array) for name, array in tensors.items()}
    if wanted != found:
        raise ValueError(f"expected {_numbers(found)}, and made a model of {_numbers(wanted)}")
    state, offsets = {}, dict.fromkeys(wanted, 0)
    for name, tensor in like.items():
        array = f"{MODULE}{str(tensor.dtype).removeprefix('torch.')}"
        state[name] = tensors[array][offsets[array] : offsets[array] + tensor.numel()].reshape(tensor.shape)
        offsets[array] += tensor.numel()
    return state


def _numbers(sizes: dict[str, int]) -> str:
    return " and ".join(f"{size:,} of {name.removeprefix(MODULE)}" for name, size in sizes.items())


def payload_tensors(payload: Payload) -> State:
    """Give a payload as named tensors."""
    return {MASK: payload.mask_weight} | {f"{VECTORS}{name}": vector for name, vector in payload.vectors.items()}


def payload_of(envelope: Envelope) -> tuple[Payload, ClientReport]:
    """Read a client's part of a round.

    Raises:
        Damaged: It is none.
    """
    sent, tensors = envelope.message(Sent), envelope.tensors()
    if MASK not in tensors:
        raise Damaged(f"a payload without {MASK!r}")
    mask = tensors.pop(MASK)
    return Payload({n.removeprefix(VECTORS): t for n, t in tensors.items()}, float(sent.weight), mask), ClientReport(
        **sent.report
    )


def of_round(rnd: Round) -> dict[str, Any]:
    """Give what a site is told of a round."""
    return {k: v for k, v in vars(rnd).items() if k != "participation"} | {"cohort": list(rnd.cohort)}


def to_round(asked: dict[str, Any]) -> Round:
    """Read it."""
    return Round(**asked | {"cohort": tuple(asked["cohort"]), "participation": torch.tensor(1.0)})


def to_clients(clients: list[dict[str, Any]]) -> dict[str, Client]:
    """Read clients with their weights, by name."""
    return {each["name"]: Client(**each | {"classes": tuple(each["classes"])}) for each in clients}


def of_client(client: Client) -> dict[str, Any]:
    """Give what a site is told of a client's place in the federation."""
    return asdict(client) | {"classes": list(client.classes)}
