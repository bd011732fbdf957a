"""Custom optimizers: on the flat vector they take the same steps as on the parameters, or are refused."""

import copy
from pathlib import Path

import pytest
import timm.optim
import torch
from foreigners import One
from strangers import fit, having, seeded
from torch import nn

from fedlit.core.errors import ConfigError

RATE = 0.05


class ClipSGD(torch.optim.SGD):
    """Keeps its bound as an attribute."""

    def __init__(self, params, lr: float = RATE, clip: float = 100.0) -> None:
        super().__init__(params, lr=lr)
        self.clip = clip

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.clamp_(-self.clip, self.clip)
        return super().step(closure)


class NormSGD(torch.optim.SGD):
    """Divides by the norm of each tensor."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(p.grad.norm() + 1)
        return super().step(closure)


class Needy(torch.optim.SGD):
    """Needs an argument that its defaults lack."""

    def __init__(self, params, bound: float) -> None:
        super().__init__(params, lr=RATE)


class Counting(torch.optim.SGD):
    """Halves the steps of later rounds, because its count is not part of its state."""

    taken = 0

    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(self.taken)
        return super().step(closure)


def of_timm(name: str):
    return lambda m: timm.optim.create_optimizer_v2(list(m.parameters()), opt=name, lr=RATE)


def hooked(m: nn.Module) -> torch.optim.Optimizer:
    def clamp(optimizer: torch.optim.Optimizer, *_) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad.clamp_(-0.01, 0.01)

    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)
    optimizer.register_step_pre_hook(clamp)
    return optimizer


def once_scheduled(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


def replaced(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)
    optimizer.step = lambda closure=None: None
    return optimizer


ELEMENTWISE = {
    "own attribute": lambda m: ClipSGD(m.parameters(), clip=0.01),
    "hook of the step": hooked,
    "scheduler that is not returned": once_scheduled,
    **{name: of_timm(name) for name in ("adan", "lion", "adopt", "radabelief", "madgrad")},
}


def by_hand(module: nn.Module, **of_weight) -> torch.Tensor:
    """Two rounds of two full-batch steps of one client, each with a new optimizer."""
    module, data = copy.deepcopy(module), One()
    vars(module.net.weight).update(of_weight)
    data.setup()
    batch = data.clients["site-0"].train[:]
    for _ in range(2):
        optimizer = module.configure_optimizers()
        for step in range(2):
            optimizer.zero_grad()
            module.training_step(batch, step).backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_elementwise_does_the_same_steps(tmp_path: Path, name: str):
    module = seeded(having(configure_optimizers=ELEMENTWISE[name]))
    w, _ = fit(module, tmp_path / "run", data=One())
    torch.testing.assert_close(w, by_hand(module), rtol=0, atol=1e-6)


REFUSED = {
    **{name: (of_timm(name), "does other steps on the flat vector than on the parameters") for name in
       ("adamp", "sgdp", "mars", "kron", "novograd", "clion")},
    "norms of tensors": (lambda m: NormSGD(m.parameters(), lr=RATE), "NormSGD does other steps .* at net.bias"),
    "a count in an attribute": (lambda m: Counting(m.parameters(), lr=RATE),
        "Counting .* in a second round than in the first"),
    "a graph": (of_timm("adahessian"), "cannot take a step along gradients that it is given"),
    "an argument that nobody kept": (lambda m: Needy(m.parameters(), 1.0), r"Needy cannot be rebuilt.*defaults"),
    "a replaced step": (replaced, "SGD: its step was replaced"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_is_refused_by_name(tmp_path: Path, name: str):
    configure, said = REFUSED[name]
    with pytest.raises(ConfigError, match=said):
        fit(seeded(having(configure_optimizers=configure)), tmp_path / "run", data=One())


@pytest.mark.filterwarnings("ignore")
def test_steps_that_are_counted_in_groups_cannot_be_kept_over_rounds(tmp_path: Path):
    module = seeded(having(configure_optimizers=of_timm("adan")))
    with pytest.raises(
        ConfigError, match=r"Adan keeps 'step' in its parameter groups; use federation.optimizer_state: reset"
    ):
        fit(module, tmp_path / "run", data=One(), optimizer_state="keep")


def scaled(m: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": [p], "lr": RATE * getattr(p, "lr_scale", 1.0)} for p in m.parameters()]
    return torch.optim.SGD(groups, lr=RATE)


@pytest.mark.filterwarnings("ignore")
def test_attributes_of_parameters_are_those_of_the_copy_too(tmp_path: Path):
    module = seeded(having(lambda m: setattr(m.net.weight, "lr_scale", 0.1), configure_optimizers=scaled))
    w, _ = fit(module, tmp_path / "run", data=One())
    torch.testing.assert_close(w, by_hand(module, lr_scale=0.1), rtol=0, atol=1e-6)


LOST = {
    "a hook of a parameter": (
        having(lambda m: m.net.weight.register_hook(lambda grad: 0 * grad)),
        r"a hook is registered on its parameter net\.weight",
    ),
    "a hook after gradients": (
        having(lambda m: m.net.weight.register_post_accumulate_grad_hook(lambda p: None)),
        r"a hook is registered on its parameter net\.weight",
    ),
    "layers in a list": (
        having(
            lambda m: setattr(m, "heads", [nn.Linear(4, 4)]),
            configure_optimizers=lambda m: torch.optim.SGD([*m.parameters(), *m.heads[0].parameters()], lr=RATE),
        ),
        r"its optimizer has 2 parameters that are not the module's, the first of shape \[4, 4\]: keep layers in a "
        r"ModuleList",
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_what_a_copy_of_the_module_would_lose_is_refused(tmp_path: Path, what: str):
    make, said = LOST[what]
    with pytest.raises(ConfigError, match=said):
        fit(seeded(make), tmp_path / "run", data=One())


def test_an_optimizer_of_another_modules_parameters_is_refused(tmp_path: Path):
    kept = []
    module = seeded(
        having(
            lambda m: kept.append(m.net), configure_optimizers=lambda m: torch.optim.SGD(kept[0].parameters(), lr=RATE)
        )
    )
    with pytest.raises(ConfigError, match="2 parameters that are not the module's"):
        fit(module, tmp_path / "run", data=One())
