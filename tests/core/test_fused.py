"""The optimizer's fused step: when it is used, and what it needs of a restored state."""

import copy

import pytest
import torch
from toys import ToyNet

from fedlit.core import optimizer
from fedlit.core.flat import FlatModel
from fedlit.core.optimizer import FlatOptimizer

MAKE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def flat(make, device: str = "cpu") -> tuple[FlatModel, FlatOptimizer]:
    torch.manual_seed(1)
    module = ToyNet().to(device)
    module.configure_optimizers = lambda: make(module.parameters())
    model = FlatModel(module)
    return model, FlatOptimizer(module, model)


def steps(model: FlatModel, stepping: FlatOptimizer, rounds: int) -> torch.Tensor:
    """Rounds of two steps with the state kept, as from a checkpoint."""
    state = {}
    draw = torch.Generator().manual_seed(2)
    for _ in range(rounds):
        stepping.begin(state, 0.5)
        for _ in range(2):
            model.grad.copy_(torch.randn(model.grad.shape, generator=draw))
            stepping.step()
        state = copy.deepcopy(stepping.state())
        assert all(tensor.device.type == "cpu" for tensor in state.values())
    return model.w.clone()


def groups(stepping: FlatOptimizer) -> list[dict]:
    return stepping._optimizer.param_groups


@pytest.mark.parametrize("name", MAKE)
def test_on_a_cpu_the_step_is_that_of_torchs_default(name):
    _, stepping = flat(MAKE[name])
    assert not any(group.get("fused") for group in groups(stepping))


@pytest.mark.parametrize("name", MAKE)
def test_the_fused_step_agrees_to_rounding(name, monkeypatch):
    wanted = steps(*flat(MAKE[name]), 3)
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    model, stepping = flat(MAKE[name])
    assert all(group.get("fused") for group in groups(stepping)) == (name != "RMSprop")
    torch.testing.assert_close(steps(model, stepping, 3), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("choice", [{"foreach": True}, {"differentiable": True}])
def test_who_has_chosen_how_a_step_is_computed_gets_it(choice, monkeypatch):
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    _, stepping = flat(lambda p: torch.optim.SGD(p, lr=0.1, **choice))
    assert not any(group["fused"] for group in groups(stepping))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MAKE)
def test_on_a_gpu_the_state_comes_back_to_it(name):
    model, stepping = flat(MAKE[name], "cuda")
    assert all(group.get("fused") for group in groups(stepping)) == (name != "RMSprop")
    wanted = steps(*flat(MAKE[name]), 3)
    torch.testing.assert_close(steps(model, stepping, 3).cpu(), wanted, rtol=1e-4, atol=1e-5)
