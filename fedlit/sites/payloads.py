"""Tensors of messages: payloads, and the tensors of a module."""

import torch
from torch import Tensor

from fedlit.core.flat import Layout
from fedlit.core.messages import Mask, Payload, State
from fedlit.sites.envelope import InvalidMessageError

MASK, VECTORS = "mask_weight", "vectors/"
"""Names of a payload's arrays."""

MODULE = "module/"
"""Prefix of the names of a module's arrays."""


def module_tensors(state: State) -> State:
    """Return a module's tensors as one array per dtype, in order: hundreds of names would fill a header."""
    kinds = dict.fromkeys(tensor.dtype for tensor in state.values())
    return {
        f"{MODULE}{str(kind).removeprefix('torch.')}": torch.cat(
            [tensor.detach().cpu().reshape(-1) for tensor in state.values() if tensor.dtype == kind]
        )
        for kind in kinds
    }


def module_state(tensors: State, like: State) -> State:
    """Return the state of a module from its arrays, with names and shapes of one with the same configuration.

    Raises:
        ValueError: If the number of values of a dtype differs.
    """
    wanted = {name: len(array) for name, array in module_tensors(like).items()}
    received = {name: len(array) for name, array in tensors.items()}
    if wanted != received:
        raise ValueError(f"expected a model of {_numbers(received)}, and made one of {_numbers(wanted)}")
    state, offsets = {}, dict.fromkeys(wanted, 0)
    for name, tensor in like.items():
        array = f"{MODULE}{str(tensor.dtype).removeprefix('torch.')}"
        state[name] = tensors[array][offsets[array] : offsets[array] + tensor.numel()].reshape(tensor.shape)
        offsets[array] += tensor.numel()
    return state


def _numbers(sizes: dict[str, int]) -> str:
    return " and ".join(f"{size:,} of {name.removeprefix(MODULE)}" for name, size in sizes.items())


def payload_tensors(payload: Payload) -> State:
    """Return a payload as named tensors."""
    return {MASK: payload.mask_weight} | {f"{VECTORS}{name}": vector for name, vector in payload.vectors.items()}


def cut(payload: Payload, mask: Mask, layout: Layout) -> tuple[Payload, dict[str, int]]:
    """Remove what the client does not share; also return the original sizes of the vectors that became shorter."""
    vectors = {name: mask.cut(layout, vector) for name, vector in payload.vectors.items()}
    whole = {name: len(vector) for name, vector in payload.vectors.items() if len(vector) > len(vectors[name])}
    return Payload(vectors, payload.weight, payload.mask_weight), whole


def filled(vector: Tensor, name: str, size: int, mask: Mask, layout: Layout) -> Tensor:
    """Restore a vector to its full size, with zeros where the client shares nothing.

    Raises:
        InvalidMessageError: If the size does not fit the layout or the mask.
    """
    shared = sum(part.stop - part.start for part in mask.sent(layout, size))
    if size not in (layout.size, layout.stats_size) or len(vector) != shared:
        raise InvalidMessageError(f"its {name!r} has {len(vector):,} values, expected {shared:,} of {size:,}")
    return mask.filled(layout, vector, size)
