"""Modules of one line each, runs of one in this process, which take milliseconds, and the same by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from engine_rounds import played, unprobed
from foreigners import Digits, Unvalidated
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedlit.core.batches import BatchStream
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientState
from fedlit.core.module import collect_logs, step_of
from fedlit.core.randomness import seed_process
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


def play(make: Callable[[], LightningModule], data: FederatedDataModule | None = None, **given: Any) -> Tensor:
    """Train without the probe and without files; return the final weights of the server."""
    with unprobed():
        session = assemble(settings(**given), seeded(make), data or Digits(), make_fabric("cpu"))
    return played(session, session.federation.rounds).w


def seeded(make: Callable[[], LightningModule]) -> LightningModule:
    torch.default_generator.manual_seed(0)  # torch.manual_seed asks every kind of device, which takes a millisecond
    return make()


def fit_in_each_way(make: Callable[[], LightningModule], folder: Path, **given: Any) -> Tensor:
    """Train in one process, in two, and with a resume after the first round, to the same weights; return them."""
    w, _ = fit(seeded(make), folder / "whole", **given)
    with unprobed():
        two, _ = fit(seeded(make), folder / "two", **given, workers=2)
        fit(seeded(make), folder / "part", **given | {"rounds": 1})
        resumed, _ = fit(seeded(make), folder / "part", folder / "part/checkpoints/round-000001", **given)
    assert torch.equal(w, two)
    assert torch.equal(w, resumed)
    return w


def by_hand(
    make: Callable[[], LightningModule],
    data: FederatedDataModule | None = None,
    clip: float | None = None,
    keep: bool = False,
) -> dict[str, Tensor]:
    """Two rounds of two steps in plain PyTorch: each client has a module and an optimizer of its own in every round.

    The clients train in reverse order, which makes no difference unless something outside of modules does. With
    ``keep`` each client has the same module and optimizer in all rounds.
    """
    data, fabric, server, held = data or Digits(), make_fabric("cpu"), None, {}
    data.setup()
    for number in range(2):
        replies = []
        for name, client in reversed(data.clients.items()):
            stream = BatchStream(client.train, data.batch_size, 0, name)
            local = held[name][0] if keep and held.get(name) else seeded(make)
            collect_logs(local, fabric)
            for key, value in local.state_dict().items() if server else ():
                if not torch.equal(value, server[key].to(value)):
                    value.copy_(server[key])
            seed_process(0, "round", number, name)
            optimizer = held[name][1] if keep and held.get(name) else local.configure_optimizers()
            held[name] = local, optimizer
            for step in range(2):
                fabric.count(2 * number + step, (2 * number + step) // stream.steps_per_epoch)
                optimizer.zero_grad()
                output = step_of(local, "training_step")(stream[2 * number + step], step)
                (output["loss"] if isinstance(output, dict) else output).sum().backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], clip)
                optimizer.step()
            replies.append(local.state_dict())
        server = {key: torch.stack([reply[key].double() for reply in replies]).mean(0) for key in replies[0]}
    return {key: value.float() for key, value in server.items()}


def vector(named: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in named.values()])
