"""Checkpoints of a toy federation with made-up states."""

from pathlib import Path

import torch
from toys import ToyNet

from fedlit.core.checkpoints.cadence import Cadence
from fedlit.core.checkpoints.checkpoint import Checkpoints, Contents
from fedlit.core.checkpoints.manifest import Best
from fedlit.core.checkpoints.stored_states import SMALL
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import FlatModel
from fedlit.core.messages import ClientState, ServerState

NAMES = ["site-0", "site-1", "site-2"]
KINDS = ["Scaffold", "FedBN"]
LAYOUT = FlatModel(ToyNet()).layout


def server(value: float) -> ServerState:
    w = torch.full((LAYOUT.size,), value)
    return ServerState(LAYOUT, w, torch.full((LAYOUT.stats_size,), -value), [{"c": w + 1}, {}])


def client(value: float) -> ClientState:
    """A large client state with a separate file, whose tensors are views of one large storage, as in shared memory."""
    storage = torch.full((100_000,), value)
    return ClientState(
        int(value),
        storage[: SMALL // 4],
        storage[8:16],
        {"0/momentum_buffer": storage[: LAYOUT.size]},
        [{"c": storage[100 : 100 + LAYOUT.size]}, {}],
    )


def small(value: float, size: int = 8) -> ClientState:
    """A client state that shares a file with others."""
    return ClientState(
        int(value), torch.full((size,), value), torch.zeros(0), {}, [{"c": torch.ones(2, 3) * value}, {}]
    )


def checkpoints(folder: Path, rounds: int = 0) -> Checkpoints:
    made = Checkpoints(folder, make_fabric("cpu"), Cadence(rounds=1))
    made.rewind(rounds)
    return made


def save(to: Checkpoints, rounds: int, clients: dict[str, ClientState] | None = None, best: Best | None = None) -> None:
    to.save(Contents(rounds, server(rounds), clients or {}, best or Best(), NAMES, KINDS))


def rounds_in(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("round-")) for path in folder.glob("round-*"))
