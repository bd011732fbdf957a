"""The optimizer's fused step: when it is used, and what it needs of a restored state."""

import copy

import pytest
import torch
from toys import ToyNet

from fedlit.core import optimizer
from fedlit.core.flat import FlatModel
from fedlit.core.optimizer import LocalOptimizer

MAKE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
FUSIBLE = ("SGD", "Adam")


def begun(make, device: str = "cpu") -> tuple[FlatModel, LocalOptimizer]:
    torch.manual_seed(1)
    module = ToyNet().to(device)
    module.configure_optimizers = lambda: make(module.parameters())
    model, local = FlatModel(module), LocalOptimizer(module, torch.device(device))
    local.begin({}, 0.5)
    return model, local


def steps(model: FlatModel, local: LocalOptimizer, rounds: int) -> torch.Tensor:
    """Rounds of two steps with the state kept, as from a checkpoint."""
    state = {}
    draw = torch.Generator().manual_seed(2)
    model.use_gradients()
    for _ in range(rounds):
        local.begin(state, 0.5)
        for _ in range(2):
            model.grad.copy_(torch.randn(model.grad.shape, generator=draw))
            local.optimizer.step()
        state = copy.deepcopy(local.state())
        assert all(tensor.device.type == "cpu" for tensor in state.values())
    return model.w.clone()


def fused(local: LocalOptimizer) -> bool:
    return all(group.get("fused") for group in local.optimizer.param_groups)


@pytest.mark.parametrize("name", MAKE)
def test_on_a_cpu_the_step_is_that_of_torchs_default(name):
    assert not fused(begun(MAKE[name])[1])


@pytest.mark.parametrize("name", MAKE)
def test_the_fused_step_agrees_to_rounding(name, monkeypatch):
    wanted = steps(*begun(MAKE[name]), 3)
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    model, local = begun(MAKE[name])
    assert fused(local) == (name in FUSIBLE)
    torch.testing.assert_close(steps(model, local, 3), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("choice", [{"foreach": True}, {"differentiable": True}])
def test_who_has_chosen_how_a_step_is_computed_gets_it(choice, monkeypatch):
    monkeypatch.setattr(optimizer, "FUSED", {"cpu"})
    assert not fused(begun(lambda p: torch.optim.SGD(p, lr=0.1, **choice))[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MAKE)
def test_on_a_gpu_the_state_comes_back_to_it(name):
    model, local = begun(MAKE[name], "cuda")
    assert fused(local) == (name in FUSIBLE)
    wanted = steps(*begun(MAKE[name]), 3)
    torch.testing.assert_close(steps(model, local, 3).cpu(), wanted, rtol=1e-4, atol=1e-5)
