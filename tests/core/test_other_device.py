"""A client's round on another device than the CPU's, without one: no tensor of the CPU may meet one of the device.

torch's fake tensors have a device, a shape and a type, but no values. What is read from them is 1 here, or True.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.data import TensorDataset
from toys import ToyNet, with_objective

from fedlit.aggregators import CODASCA, MOON, Ditto, FedBN, FedDyn, FedNova, FedProx, LocalSCGDAM, LocalSGDM, Scaffold
from fedlit.core import measuring
from fedlit.core.aggregator import Aggregator
from fedlit.core.batches import BatchStream
from fedlit.core.fabric import FederationFabric, make_fabric
from fedlit.core.hooks import initial_client_state
from fedlit.core.local_model import LocalModel
from fedlit.core.local_training import LocalTraining
from fedlit.core.messages import Broadcast, Client, Payload, Round
from fedlit.core.rounds import client_round
from fedlit.objectives import AUCSaddle, RatioLoss

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "lazy", 0)

READ = {"item": 1, "equal": True, "__bool__": True, "__float__": 1.0, "__int__": 1}


class Ones(TorchFunctionMode):
    """What a program reads from a tensor without values."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "tolist":
            return args[0].numel() * [1] if args[0].dim() else 1
        if name == "pin_memory":
            return args[0]
        return READ[name] if name in READ else function(*args, **(kwargs or {}))


@contextmanager
def another_device() -> Iterator[None]:
    """Move batches to a device that exists as far as torch's checks of devices go; models are made on it."""
    with (
        mock.patch.object(measuring, "check_labels"),  # their values
        mock.patch.object(FederationFabric, "device", DEVICE),
        mock.patch.object(FederationFabric, "to_device", lambda self, batch: move_data_to_device(batch, DEVICE)),
        mock.patch.object(FederationFabric, "setup_module", lambda self, module: module),
        FakeTensorMode(),
        Ones(),
    ):
        yield


def one_round(aggregators: list[Aggregator], objective: Any = None, window: int = 1, **training: Any) -> Payload:
    """Train a client's round on the other device; return what it sends."""
    with torch.device(DEVICE):
        module = ToyNet(("Edema",)) if objective is None else with_objective(objective(), classes=("Edema",))
    local = LocalModel(make_fabric("cpu"), module, aggregators, LocalTraining(**training))
    images = TensorDataset(torch.rand(8, 1, 8, 8), torch.rand(8, len(module.classes)).round())
    state = initial_client_state(aggregators, local.layout)
    flat = local.flat
    w, stats = flat.w.clone().cpu(), flat.stats.clone().cpu()
    rnd = Round(0, 0, 1.0, window, "steps", 0, True, False, ("north",))
    down = Broadcast(w, stats, [each.broadcast(each.server_state(local.layout, w), rnd) for each in aggregators])
    client = Client("north", module.classes, 8, 1.0)
    payload, _, _ = client_round(local, BatchStream(images, 4, 0, "north"), client, state, down.to(DEVICE), rnd)
    return payload


ALGORITHMS = {
    "SCAFFOLD and others": ([Scaffold(), FedProx(), FedBN(), MOON(), Ditto(), FedNova()], None),
    "CODASCA": ([CODASCA()], AUCSaddle),
    "LocalSCGDAM": ([LocalSCGDAM()], AUCSaddle),
    "LocalSGDM": ([LocalSGDM()], None),
    "FedDyn": ([FedDyn()], None),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_of_a_round_is_on_the_device(name: str) -> None:
    parts, objective = ALGORITHMS[name]
    with another_device():
        assert one_round(parts, objective).vectors["w"].device == DEVICE


@pytest.mark.parametrize("objective", [None, AUCSaddle, RatioLoss])
def test_all_of_a_measuring_round_is_on_the_device(objective: Any) -> None:
    with another_device():
        assert one_round([], objective, window=0).vectors


@pytest.mark.parametrize("training", [{"optimizer_state": "keep", "gradient_clip": 1.0}, {"gradient_clamp": 1.0}])
def test_settings_of_a_round_are_on_the_device(training: dict[str, Any]) -> None:
    with another_device():
        assert one_round([], **training).vectors["w"].device == DEVICE


def test_a_tensor_of_the_cpu_is_found() -> None:
    class Forgetful(Aggregator):
        def on_before_send(self, ctx, delta):
            return delta + torch.ones(len(delta), device="cpu")

    with another_device(), pytest.raises(Exception, match="device"):
        one_round([Forgetful()])
