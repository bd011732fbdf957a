"""Modules of one line each, and a run of one in this process, which takes milliseconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from foreigners import Digits, Unvalidated
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientState
from fedlit.data.federated import FederatedDataModule
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import Tracker
from fedlit.tracking.run import Run

Step = Callable[[LightningModule, Tensor, tuple[Tensor, Tensor]], Any]


def stepping(change: Step, start: Callable[[LightningModule], Any] = lambda module: None, **body: Any) -> type:
    """A module whose training step returns what ``change`` makes of module, loss and batch.

    Args:
        change: What the step does beside the loss.
        start: What the constructor does beside the layers.
        body: Other methods and attributes of the class.
    """

    def __init__(self) -> None:
        Unvalidated.__init__(self)
        start(self)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return change(self, Unvalidated.training_step(self, batch, batch_idx), batch)

    return type("Strange", (Unvalidated,), {"__init__": __init__, "training_step": training_step, **body})


def having(start: Callable[[LightningModule], Any] = lambda module: None, **body: Any) -> type:
    """A module with its own constructor or methods, and a plain training step."""
    return stepping(lambda module, loss, batch: loss, start, **body)


def settings(**given: Any) -> Federation:
    return Federation(**{"rounds": 2, "workers": 1, "schedule": ConstantSchedule(2, "steps"), **given})


def fit(
    module: LightningModule,
    path: Path,
    resume: Path | None = None,
    data: FederatedDataModule | None = None,
    **given: Any,
) -> tuple[Tensor, dict[str, ClientState]]:
    """Train as ``fedlit fit`` does; return the final weights of the server and states of the clients."""
    federation, run = settings(**given), Run(path, Tracker())
    session = assemble(federation, module, data or Digits(), make_fabric("cpu"))
    try:
        federation.fit(session, run, resume)
        last = max((path / "checkpoints").glob("round-*"))
        return session.restore(last)[0].w, dict(session.engine.client_states())
    finally:
        session.engine.close()
        run.finish("FINISHED")


def seeded(make: Callable[[], LightningModule]) -> LightningModule:
    torch.manual_seed(0)
    return make()
