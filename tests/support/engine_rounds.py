"""Rounds of a federation that tests play step by step on a local engine."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.pytorch import LightningModule

from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ServerState
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.assembly import assemble
from fedlit.federation.engines.local import LocalEngine
from fedlit.federation.federation import Federation
from fedlit.federation.server import server_round
from fedlit.federation.session import Session


@contextmanager
def opened(
    federation: Federation, module: LightningModule, data: FederatedDataModule, workers: int
) -> Iterator[tuple[Session, ServerState]]:
    """Context manager that yields a session on copies of module and data, and its initial state."""
    federation.workers = workers
    session = assemble(federation, copy.deepcopy(module), copy.deepcopy(data), make_fabric("cpu"))
    try:
        yield session, session.restore(None)[0]
    finally:
        session.engine.close()


def run(session: Session, server: ServerState, index: int = 0) -> tuple:
    """Run the clients' part of a round; returns the round, the combined payload and the reports."""
    rnd = session.round(index)
    return rnd, *session.engine.run(rnd.cohort, session.broadcast(server, rnd), rnd)


def play_round(session: Session, server: ServerState, index: int = 0) -> tuple[str, ...]:
    """Run a whole round and return its cohort."""
    rnd, total, reports = run(session, server, index)
    assert [report.client for report in reports] == list(rnd.cohort)
    server_round(session.federation.aggregators, server, total, rnd)
    session.engine.commit()
    return rnd.cohort


def everything(session: Session, server: ServerState) -> dict[str, torch.Tensor]:
    """Copy all tensors of the server and of the clients' states."""
    tensors = {"w": server.w, "stats": server.stats}
    tensors |= {f"server/{i}/{k}": v for i, state in enumerate(server.aggregators) for k, v in state.items()}
    for name, state in session.engine.client_states().items():
        tensors |= {f"{name}/{k}": v for k, v in state.tensors().items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def shared_folder(engine: LocalEngine) -> Path | None:
    """Return the folder of an engine's shared memory, or None without worker processes."""
    folder = getattr(engine._pool, "_folder", None)
    return folder.path if folder else None
