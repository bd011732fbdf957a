"""A federation that keeps all of its objects."""

from dataclasses import dataclass, replace

import torch
from engine_rounds import assembled, play_round
from lightning.pytorch import LightningModule

from fedlit.core.aggregator import Aggregator
from fedlit.core.messages import ClientState, ServerState
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule


def federated(
    aggregators: list[Aggregator], rounds: int = 3, window: int = 2, unit: str = "steps", **options
) -> Federation:
    """A federation of rounds with equal windows."""
    return Federation(aggregators, rounds=rounds, schedule=ConstantSchedule(window, unit), **options)


def assert_near(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float, where: str) -> None:
    """Compare all of our tensors with those of the same name, in any precision."""
    options = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(ours, {n: theirs[n] for n in ours}, **options, msg=lambda text: f"{where}: {text}")


@dataclass
class Simulation:
    """A federation after its rounds, with the server's state before the first of them."""

    federation: Federation
    session: Session
    server: ServerState
    start: ServerState
    cohorts: list[tuple[str, ...]]

    @property
    def states(self) -> dict[str, ClientState]:
        """The clients' states."""
        return dict(self.session.engine.client_states())

    def parameters(self, vector: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The server's parameters by name, or the same places of another vector."""
        return {e.name: e.view(self.server.w if vector is None else vector) for e in self.session.layout.parameters}

    def tensor(self, name: str, vector: torch.Tensor | None = None) -> torch.Tensor:
        return self.parameters(vector)[name]

    def buffers(self, stats: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The server's statistics by name, or those of another vector."""
        return {e.name: e.view(self.server.stats if stats is None else stats) for e in self.session.layout.buffers}

    def buffer(self, name: str) -> torch.Tensor:
        return self.buffers()[name]


def simulate(
    module: LightningModule,
    data: FederatedDataModule,
    federation: Federation,
    precision: str = "64-true",
    after_round=lambda simulation: None,
    workers: int = 1,
) -> Simulation:
    """All rounds of a federation on copies of module and data; worker processes are closed at the end."""
    federation.workers = workers
    session = assembled(federation, module, data, precision)
    server, _, _ = session.restore(None)
    session.initialise_objective(server)
    start = replace(server, w=server.w.clone(), stats=server.stats.clone())
    result = Simulation(federation, session, server, start, [])
    try:
        for index in range(federation.rounds):
            result.cohorts.append(tuple(report.client for report in play_round(session, server, index)))
            after_round(result)
    finally:
        if workers > 1:
            session.engine.close()
    return result
