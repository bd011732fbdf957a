"""Small client states in one file: clients that keep tensors of the same names and shapes are rows of stacked tensors."""

from collections.abc import Mapping

import torch

from fedlit.core.messages import ClientState, State, stripped

SMALL = 2**15
"""Client states of up to so many bytes share a file, and travel between processes in the message itself."""

NUMBERS = "clients"
"""Name of the tensor that says whose rows they are."""


def is_small(state: ClientState) -> bool:
    """Tell whether a state shares a file with others."""
    return sum(t.numel() * t.element_size() for t in state.tensors().values()) <= SMALL


def stacked(states: Mapping[int, ClientState]) -> State:
    """Stack states by the numbers of their clients: ``<kind>/clients`` [K], and ``<kind>/<name>`` [K, ...] of each tensor."""
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
    """The inverse of :func:`stacked`: the tensors of each state, by the number of its client.

    Args:
        stacks: What :func:`stacked` gave.
        clients: How many clients the federation has.
        names: Tensors that every state has.

    Raises:
        ValueError: It is something else; says what is wrong.
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
