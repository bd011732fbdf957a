"""Custom optimizers: they take the steps of a plain PyTorch loop for each client, or are refused."""

from pathlib import Path

import pytest
import timm.optim
import torch
from foreigners import One
from refusals import refused
from strangers import by_hand, fit, having, seeded, stepping
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
    """Divides by the number of steps, which is not part of its state."""

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


def halved(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE)

    def step(closure=None):
        for p in m.parameters():
            p.grad.mul_(0.5)
        return torch.optim.SGD.step(optimizer, closure)

    optimizer.step = step
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


def own_optimizer(m: nn.Module) -> torch.optim.Optimizer:
    m.opt = torch.optim.SGD(m.parameters(), lr=RATE)
    return m.opt


def own_scheduler(m: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(m.parameters(), lr=RATE, momentum=0.9)
    m.decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return optimizer


def sets_its_rate(m: nn.Module, loss: torch.Tensor, batch: tuple) -> torch.Tensor:
    m.opt.param_groups[0]["lr"] = 0.1 * float(loss.detach())
    return loss


def steps_its_scheduler(m: nn.Module, loss: torch.Tensor, batch: tuple) -> torch.Tensor:
    if m.decay.optimizer.state:
        m.decay.step()
    return loss


OF_TIMM = ("adan", "lion", "adopt", "radabelief", "madgrad", "adamp", "kron", "sgdp", "mars", "novograd", "clion")
TRAINED = {
    **{name: having(configure_optimizers=of_timm(name)) for name in OF_TIMM},
    **{
        what: having(configure_optimizers=configure)
        for what, configure in {
            "own attribute": lambda m: ClipSGD(m.parameters(), clip=0.01),
            "hook of the step": hooked,
            "scheduler that is not returned": once_scheduled,
            "norms of tensors": lambda m: NormSGD(m.parameters(), lr=RATE),
            "a count in an attribute": lambda m: Counting(m.parameters(), lr=RATE),
            "an argument that nobody kept": lambda m: Needy(m.parameters(), 1.0),
            "a state that is loaded": loaded,
            "the weights that it was made with": lambda m: Anchored(m.parameters()),
            "a list of tensors": lambda m: Listed(m.parameters()),
            "a module": lambda m: OfModule(m),
            "only matrices": lambda m: torch.optim.Muon([m.net.weight]),
            "factors of matrices": lambda m: torch.optim.Adafactor(m.parameters(), lr=RATE),
            "a replaced step": halved,
        }.items()
    },
    "an attribute of the module, with its rate set in the step": stepping(
        sets_its_rate, configure_optimizers=own_optimizer
    ),
    "a scheduler in an attribute, stepped in the step": stepping(
        steps_its_scheduler, configure_optimizers=own_scheduler
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", spread(TRAINED))
def test_it_takes_the_steps_of_a_plain_loop(tmp_path: Path, make: type):
    w, _ = fit(seeded(make), tmp_path / "run")
    torch.testing.assert_close(w, by_hand(seeded(make)), rtol=0, atol=1e-6)


REFUSED = {
    "a closure": (lambda m: Closing(m.parameters(), lr=RATE), ("optimizer-needs-closure", "Closing", "a closure")),
    "second order": (lambda m: torch.optim.LBFGS(m.parameters()), ("optimizer-needs-closure", "LBFGS")),
    "a parameter twice": (lambda m: torch.optim.SGD([m.net.weight, m.net.weight], lr=RATE),
        ("optimizer-parameter-twice",)),
    "steps with a graph": (lambda m: torch.optim.SGD(m.parameters(), lr=RATE, differentiable=True),
        ("optimizer-differentiable", "SGD")),
    "a parameter that it freezes": (freezing, ("optimizer-freezes-parameter", "net.bias")),
    "weights that it sets": (initialising, ("optimizer-changes-weights", "configure_optimizers")),
    "no parameter": (lambda m: torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=RATE),
        ("optimizer-of-other-parameters", "1 parameters")),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_train_is_refused_by_name(tmp_path: Path, what: str):
    configure, mistake = REFUSED[what]
    with refused(*mistake):
        fit(seeded(having(configure_optimizers=configure)), tmp_path / "run", data=One())


class Listing(torch.optim.SGD):
    """Keeps a list in its state."""

    def step(self, closure=None):
        super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["history"] = [1.0]


KEPT = {
    "steps that are counted in groups": of_timm("adan"),
    "numbers": of_timm("radabelief"),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=RATE, amsgrad=True),
    "momentum of one group": lambda m: torch.optim.SGD(
        [{"params": [m.net.weight], "momentum": 0.9}, {"params": [m.net.bias]}], lr=RATE
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", KEPT)
def test_a_state_that_is_kept_is_that_of_one_optimizer(tmp_path: Path, what: str):
    make = having(configure_optimizers=KEPT[what])
    w, _ = fit(seeded(make), tmp_path / "run", data=One(), optimizer_state="keep")
    torch.testing.assert_close(w, by_hand(seeded(make), One(), keep=True), rtol=0, atol=1e-6)
    assert not torch.allclose(w, by_hand(seeded(make), One()), atol=1e-6)


def test_a_state_that_no_checkpoint_could_hold_is_refused(tmp_path: Path):
    module = seeded(having(configure_optimizers=lambda m: Listing(m.parameters(), lr=RATE)))
    with refused("optimizer-state-not-a-tensor", "Listing", "'history'"):
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
