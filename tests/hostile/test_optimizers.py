"""Custom optimizers: on the flat vector they take the same steps as on the parameters, or are refused."""

from pathlib import Path

import pytest
import timm.optim
import torch
from foreigners import One
from refusals import refused
from strangers import by_hand, fit, having, seeded
from support.hostile import spread
from torch import nn

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


def loaded(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE, momentum=0.9)
    for p in m.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.ones_like(p)
    return optimizer


class Anchored(torch.optim.SGD):
    """Pulls towards the weights that it was made with."""

    def __init__(self, params, lr: float = RATE) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["anchor"] = p.detach().clone()

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.add_(p.detach() - self.state[p]["anchor"], alpha=0.5)
        return super().step(closure)


class Listed(torch.optim.SGD):
    """Keeps a list of tensors of the parameters' shapes."""

    def __init__(self, params, lr: float = RATE) -> None:
        super().__init__(params, lr=lr)
        self.anchors = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def step(self, closure=None):
        for p, anchor in zip(self.param_groups[0]["params"], self.anchors, strict=True):
            p.grad.add_(p.detach() - anchor)
        return super().step(closure)


class OfModule(torch.optim.SGD):
    """Takes a module in the place of parameters."""

    def __init__(self, module, lr: float = RATE) -> None:
        super().__init__(module.parameters(), lr=lr)


class OwnMuon(torch.optim.Muon):
    """A subclass of what is refused by its name."""


class Closing(torch.optim.SGD):
    """Needs a closure."""

    def step(self, closure):
        return super().step(closure)


def freezing(m: nn.Module) -> torch.optim.Optimizer:
    m.net.bias.requires_grad_(False)
    return torch.optim.SGD([m.net.weight], lr=RATE)


def initialising(m: nn.Module) -> torch.optim.Optimizer:
    nn.init.zeros_(m.net.bias)
    return torch.optim.SGD(m.parameters(), lr=RATE)


ELEMENTWISE = {
    "own attribute": lambda m: ClipSGD(m.parameters(), clip=0.01),
    "hook of the step": hooked,
    "scheduler that is not returned": once_scheduled,
    **{name: of_timm(name) for name in ("adan", "lion", "adopt", "radabelief", "madgrad")},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_elementwise_does_the_same_steps(tmp_path: Path, name: str):
    module = seeded(having(configure_optimizers=ELEMENTWISE[name]))
    w, _ = fit(module, tmp_path / "run", data=One())
    torch.testing.assert_close(w, by_hand(module, One()), rtol=0, atol=1e-6)


REFUSED = {
    **{name: (of_timm(name), ("check-optimizer", "than on the parameters")) for name in
       ("adamp", "kron", "sgdp", "mars", "novograd", "clion")},
    "norms of tensors": (lambda m: NormSGD(m.parameters(), lr=RATE), ("check-optimizer", "NormSGD", "at net.bias")),
    "a count in an attribute": (lambda m: Counting(m.parameters(), lr=RATE),
        ("check-optimizer", "Counting", "in a second round than in the first")),
    "a graph": (of_timm("adahessian"), ("check-optimizer", "gradients that are set from outside")),
    "an argument that nobody kept": (lambda m: Needy(m.parameters(), 1.0), ("optimizer-not-rebuildable", "Needy")),
    "a state that is loaded": (loaded, ("check-new-optimizer", "SGD", "net.weight")),
    "the weights that it was made with": (lambda m: Anchored(m.parameters()), ("check-optimizer", "Anchored")),
    "a list of tensors": (lambda m: Listed(m.parameters()), ("check-optimizer", "Listed", "flat vector: The size")),
    "a module": (lambda m: OfModule(m), ("optimizer-not-rebuildable", "OfModule")),
    "only matrices": (lambda m: OwnMuon([m.net.weight]), ("optimizer-not-rebuildable", "OwnMuon", "only supports 2D")),
    "a closure": (lambda m: Closing(m.parameters(), lr=RATE), ("check-optimizer", "Closing", "'closure'")),
    "a parameter twice": (lambda m: torch.optim.SGD([m.net.weight, m.net.weight], lr=RATE),
        ("optimizer-parameter-twice",)),
    "steps with a graph": (lambda m: torch.optim.SGD(m.parameters(), lr=RATE, differentiable=True),
        ("check-optimizer", "SGD", "a leaf Variable")),
    "a parameter that it freezes": (freezing, ("optimizer-freezes-parameter", "net.bias")),
    "weights that it sets": (initialising, ("optimizer-changes-weights", "configure_optimizers")),
    "a replaced step": (replaced, ("optimizer-step-replaced", "SGD")),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", spread(REFUSED))
def test_what_is_not_is_refused_by_name(tmp_path: Path, case: tuple):
    configure, mistake = case
    with refused(*mistake):
        fit(seeded(having(configure_optimizers=configure)), tmp_path / "run", data=One())


@pytest.mark.filterwarnings("ignore")
def test_steps_that_are_counted_in_groups_cannot_be_kept_over_rounds(tmp_path: Path):
    module = seeded(having(configure_optimizers=of_timm("adan")))
    with refused("optimizer-group-state", "Adan", "'step'"):
        fit(module, tmp_path / "run", data=One(), optimizer_state="keep")


def scaled(m: nn.Module, scale: float = 1.0) -> torch.optim.Optimizer:
    weight = {"params": [m.net.weight], "lr": RATE * getattr(m.net.weight, "lr_scale", scale)}
    return torch.optim.SGD([weight, {"params": [m.net.bias]}], lr=RATE)


@pytest.mark.filterwarnings("ignore")
def test_attributes_of_parameters_are_those_of_the_copy_too(tmp_path: Path):
    module = seeded(having(lambda m: setattr(m.net.weight, "lr_scale", 0.1), configure_optimizers=scaled))
    w, _ = fit(module, tmp_path / "run", data=One())
    plain = seeded(having(configure_optimizers=lambda m: scaled(m, 0.1)))
    torch.testing.assert_close(w, by_hand(plain, One()), rtol=0, atol=1e-6)


LOST = {
    "a hook of a parameter": (
        having(lambda m: m.net.weight.register_hook(lambda grad: 0 * grad)),
        ("check-hooks-of-parameters", "net.weight"),
    ),
    "a hook after gradients": (
        having(lambda m: m.net.weight.register_post_accumulate_grad_hook(lambda p: None)),
        ("check-hooks-of-parameters", "net.weight"),
    ),
    "layers in a list": (
        having(
            lambda m: setattr(m, "heads", [nn.Linear(4, 4)]),
            configure_optimizers=lambda m: torch.optim.SGD([*m.parameters(), *m.heads[0].parameters()], lr=RATE),
        ),
        ("optimizer-of-other-parameters", "2 parameters", "[4, 4]", "ModuleList"),
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_what_a_copy_of_the_module_would_lose_is_refused(tmp_path: Path, what: str):
    make, mistake = LOST[what]
    with refused(*mistake):
        fit(seeded(make), tmp_path / "run", data=One())


def test_an_optimizer_of_another_modules_parameters_is_refused(tmp_path: Path):
    kept = []
    module = seeded(
        having(
            lambda m: kept.append(m.net), configure_optimizers=lambda m: torch.optim.SGD(kept[0].parameters(), lr=RATE)
        )
    )
    with refused("optimizer-of-other-parameters", "2 parameters"):
        fit(module, tmp_path / "run", data=One())
