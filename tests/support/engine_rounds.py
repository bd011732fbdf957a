"""Rounds of a federation that tests play step by step on a local engine."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule

from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientReport, Payload, Round, ServerState
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.assembly import assemble
from fedlit.federation.engines.pool import LocalEngine
from fedlit.federation.evaluation import client_views
from fedlit.federation.examinations import Behaviour
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session


@contextmanager
def unprobed() -> Iterator[None]:
    """Context manager in which no module is probed: it takes as long as two rounds, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Behaviour, "problem", lambda examination, trial: "")
        yield


def assembled(
    federation: Federation, module: LightningModule, data: FederatedDataModule, precision: str = "32-true"
) -> Session:
    """Return a session on copies of module and data, without a probe."""
    with unprobed():
        return assemble(federation, copy.deepcopy(module), copy.deepcopy(data), make_fabric("cpu", precision=precision))


@contextmanager
def opened(
    federation: Federation,
    module: LightningModule,
    data: FederatedDataModule,
    workers: int = 1,
    precision: str = "32-true",
) -> Iterator[tuple[Session, ServerState]]:
    """Context manager that yields a session on copies of module and data, and its initial state."""
    federation.workers = workers
    session = assembled(federation, module, data, precision)
    try:
        yield session, session.restore(None)[0]
    finally:
        session.engine.close()


def run(session: Session, server: ServerState, index: int = 0) -> tuple[Round, Payload, list[ClientReport]]:
    """Run the clients' part of a round; returns the round, the combined payload and the reports."""
    rnd = session.round(index)
    return rnd, *session.engine.run(rnd.cohort, session.federation.open_round(server, rnd, session), rnd)


def play_round(session: Session, server: ServerState, index: int = 0) -> list[ClientReport]:
    """Run a whole round and return the reports of its cohort."""
    rnd, total, reports = run(session, server, index)
    assert [report.client for report in reports] == list(rnd.cohort)
    session.federation.close_round(server, total, rnd, session)
    return reports


def played(
    session: Session, rounds: int = 3, after: Callable[[ServerState, list[ClientReport]], None] = lambda *_: None
) -> ServerState:
    """Run rounds from the start and return the server's state."""
    server, _, _ = session.restore(None)
    session.initialise_objective(server)
    for index in range(rounds):
        after(server, play_round(session, server, index))
    return server


def everything(session: Session, server: ServerState) -> dict[str, torch.Tensor]:
    """Copy all tensors of the server and of the clients' states."""
    tensors = {"w": server.w, "stats": server.stats}
    tensors |= {f"server/{i}/{k}": v for i, state in enumerate(server.aggregators) for k, v in state.items()}
    for name, state in session.engine.client_states().items():
        tensors |= {f"{name}/{k}": v for k, v in state.tensors().items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def scored(session: Session, server: ServerState) -> dict[str, torch.Tensor]:
    """Return scores, labels and logged values of the clients' validation sets."""
    down, tensors = session.broadcast(server, session.round(0)), {}
    for scores in session.engine.evaluate(client_views(session.data, "val"), down):
        values = {"scores": scores.scores, "labels": scores.labels, "logged": torch.tensor([*scores.logged.values()])}
        tensors |= {f"{kind}/{scores.view.client}": value for kind, value in values.items()}
    return tensors


def shared_folder(engine: LocalEngine) -> Path | None:
    """Return the folder of an engine's shared memory, or None without worker processes."""
    folder = getattr(engine._pool, "_folder", None)
    return folder.path if folder else None
