"""A federation that runs in this process and keeps all of its objects."""

import copy
from dataclasses import dataclass

import torch
from engine_rounds import play_round
from lightning.pytorch import LightningModule

from fedlit.core.aggregator import Aggregator
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ServerState
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule


def federated(
    aggregators: list[Aggregator], rounds: int = 3, window: int = 2, unit: str = "steps", **options
) -> Federation:
    """A federation of rounds with equal windows."""
    return Federation(aggregators, rounds=rounds, schedule=ConstantSchedule(window, unit), **options)


@dataclass
class Simulation:
    """A federation after its rounds."""

    federation: Federation
    session: Session
    server: ServerState
    cohorts: list[tuple[str, ...]]

    def tensor(self, name: str, vector: torch.Tensor | None = None) -> torch.Tensor:
        """A parameter of the server by its name, or the same place of another vector."""
        entry = next(e for e in self.session.layout.parameters if e.name == name)
        return entry.view(self.server.w if vector is None else vector)

    def buffer(self, name: str) -> torch.Tensor:
        return next(e for e in self.session.layout.buffers if e.name == name).view(self.server.stats)


def simulate(
    module: LightningModule,
    data: FederatedDataModule,
    federation: Federation,
    precision: str = "64-true",
    after_round=lambda simulation: None,
) -> Simulation:
    """All rounds of a federation on copies of module and data, in this process."""
    federation.workers = 1
    session = assemble(federation, copy.deepcopy(module), copy.deepcopy(data), make_fabric("cpu", precision=precision))
    server, _, _ = session.restore(None)
    session.initialise_objective(server)
    result = Simulation(federation, session, server, [])
    for index in range(federation.rounds):
        result.cohorts.append(tuple(report.client for report in play_round(session, server, index)))
        after_round(result)
    return result
