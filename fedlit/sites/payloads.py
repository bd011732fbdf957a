"""What messages carry beside their fields: payloads, and the tensors of a module."""

import torch

from fedlit.core.messages import Payload, State

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
