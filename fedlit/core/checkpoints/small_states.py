"""Small client states in one file: clients with tensors of the same names and shapes are rows of stacked tensors."""

from collections.abc import Mapping

import torch

from fedlit.core.messages import ClientState, State, stripped

SMALL = 2**15
"""Largest number of bytes of a client state that shares a file, and travels between processes inside the message."""

NUMBERS = "clients"
"""Name of the tensor with the clients' numbers."""


def is_small(state: ClientState) -> bool:
    """Return whether a state shares a file with others."""
    return sum(t.nbytes for t in state.tensors().values()) <= SMALL


def stacked(states: Mapping[int, ClientState]) -> State:
    """Stack states by their clients' numbers: ``<kind>/clients`` [K], and ``<kind>/<name>`` [K, ...] per tensor."""
    kinds: dict[tuple, dict[int, State]] = {}
    for number, state in states.items():
        tensors = state.tensors()
        kind = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
        kinds.setdefault(kind, {})[number] = tensors
    stacks = {}
    for place, (kind, rows) in enumerate(kinds.items()):
        stacks[f"{place}/{NUMBERS}"] = torch.tensor(list(rows))
        stacks |= {f"{place}/{name}": torch.stack([row[name] for row in rows.values()]) for name, _, _ in kind}
    return stacks


def unstacked(stacks: State, clients: int, names: tuple[str, ...]) -> dict[int, State]:
    """Invert :func:`stacked`: return the tensors of each state, with all of ``names``, by its client's number.

    Raises:
        ValueError: It is something else; names the fault.
    """
    states: dict[int, State] = {}
    for place in dict.fromkeys(key.partition("/")[0] for key in stacks):
        rows = stripped(stacks, f"{place}/")
        if lacking := [name for name in (NUMBERS, *names) if name not in rows]:
            raise ValueError(f"lacks the tensor {lacking[0]!r}")
        numbers = rows.pop(NUMBERS).tolist()
        for name, tensor in rows.items():
            if tensor.shape[:1] != (len(numbers),):
                raise ValueError(f"expected {len(numbers)} rows of {name!r}, found shape {tuple(tensor.shape)}")
        for row, number in enumerate(numbers):
            if number in states or number not in range(clients):
                raise ValueError(f"holds a client number {number} {'twice' if number in states else f'of {clients}'}")
            states[number] = {name: tensor[row].clone() for name, tensor in rows.items()}
    return states
