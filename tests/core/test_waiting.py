"""Local steps that never wait for the device: no value is read, and no shape depends on one."""

from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch
from engine_rounds import opened, played
from engine_rounds import run as run_clients
from lightning.pytorch import LightningModule
from pictures import Small, data, network
from torch.utils._python_dispatch import TorchDispatchMode

from fedlit.aggregators import CODASCA, FedBN, FedProx, LocalSGDAM, LocalSGDM, Scaffold
from fedlit.core.batches import Draws
from fedlit.core.fabric import make_fabric
from fedlit.core.local_model import LocalModel
from fedlit.data.pictures.augmentation import FlipCropAugmentation, XrayAugmentation
from fedlit.federation import devices
from fedlit.federation.assembly import assemble
from fedlit.federation.devices import Placement
from fedlit.federation.federation import Federation
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule, PracticeSchedule

WAITING = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim"}
"""Operations for which a host waits for its GPU."""


class Refusing(TorchDispatchMode):
    """Refuses operations for which a host would wait for its GPU."""

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        name = operation._schema.name.removeprefix("aten::")
        masks = name.startswith("index") and any(
            torch.is_tensor(index) and index.dtype in (torch.bool, torch.uint8)
            for index in (given[1] if isinstance(given[1], (list, tuple)) else ())
        )
        if name in WAITING or masks:
            raise AssertionError(f"{operation} waits for the device")
        return operation(*given, **(named or {}))


@contextmanager
def synchronisation_refused():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


CASES = {
    "clipped": (Small, lambda: Federation([FedProx(0.1)], gradient_clip=1.0)),
    "SCAFFOLD, FedBN": (network, lambda: Federation([Scaffold(), FedBN()])),
    "LocalSGDM": (network, lambda: Federation([LocalSGDM()])),
    "CODASCA": (
        lambda: network(objective=AUCSaddle(clamp=True)),
        lambda: Federation([CODASCA()], schedule=PracticeSchedule(window=2, iterations=20, decay_every=10)),
    ),
    "LocalSGDAM": (lambda: network(objective=AUCSaddle()), lambda: Federation([LocalSGDAM()])),
}


def run(
    make_module: Callable[[], LightningModule],
    make_federation: Callable[[], Federation],
    folder,
    monkeypatch,
    guard,
    device: str = "cpu",
) -> None:
    """Two rounds, of which the second is guarded: the first may copy constants to the device.

    In the second one client has a smaller last batch, and the other begins a new pass.
    """
    torch.manual_seed(1)
    federation = make_federation()
    federation.clients = ["one", "three"]
    if device == "cpu":
        monkeypatch.setattr(devices, "resolve_placement", lambda *given: Placement("resident"))
    if not isinstance(federation.schedule, PracticeSchedule):
        federation.schedule = ConstantSchedule(2, "steps")
    federation.workers = 1
    made = assemble(federation, make_module(), data(folder, XrayAugmentation()), make_fabric(device))
    server = played(made, rounds=1)
    for owner, name in ((LocalModel, "step"), (Draws, "next")):
        monkeypatch.setattr(owner, name, _guarded(getattr(owner, name), guard))
    run_clients(made, server, 1)
    made.engine.close()


def _guarded(function: Callable, guard) -> Callable:
    def inside(*given):
        with guard():
            return function(*given)

    return inside


@pytest.mark.parametrize("case", CASES)
def test_a_local_step_reads_no_value(case, tmp_path, monkeypatch):
    run(*CASES[case], tmp_path, monkeypatch, Refusing)


def test_the_guard_notices():
    for waits in (lambda x: x.item(), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: bool(x.any())):
        with pytest.raises(AssertionError, match="waits for the device"), Refusing():
            waits(torch.ones(1))


def test_flips_and_crops_read_no_value():
    with Refusing():
        FlipCropAugmentation()(torch.zeros(3, 1, 8, 8))


def test_the_first_gradient_is_noticed_at_the_end_of_the_round(tmp_path):
    with opened(Federation(schedule=ConstantSchedule(2, "steps")), Small(), data(tmp_path)) as (made, server):
        local = made.engine._pool.worker.local
        _, _, reports = run_clients(made, server)
    assert local.learns
    assert local.moves
    assert {report.still for report in reports} == {""}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", CASES)
def test_a_local_step_on_a_gpu_does_not_synchronise(case, tmp_path, monkeypatch):
    run(*CASES[case], tmp_path, monkeypatch, synchronisation_refused, "cuda")
