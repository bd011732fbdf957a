"""Optimizers that cannot train are refused; a state that is kept is that of one optimizer."""

from pathlib import Path

import pytest
import torch
from corpus import RATE, of_timm
from foreigners import One
from refusals import refused
from strangers import by_hand, fit, having, play, seeded, vector
from torch import nn

from fedlit.core.errors import ConfigError


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


REFUSED = {
    "a closure": (lambda m: Closing(m.parameters(), lr=RATE), (ConfigError, "Closing", "a closure")),
    "second order": (lambda m: torch.optim.LBFGS(m.parameters()), (ConfigError, "LBFGS")),
    "a parameter twice": (lambda m: torch.optim.SGD([m.net.weight, m.net.weight], lr=RATE),
        (ConfigError,)),
    "steps with a graph": (lambda m: torch.optim.SGD(m.parameters(), lr=RATE, differentiable=True),
        (ConfigError, "SGD")),
    "a parameter that it freezes": (freezing, (ConfigError, "net.bias")),
    "weights that it sets": (initialising, (ConfigError, "configure_optimizers")),
    "no parameter": (lambda m: torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=RATE),
        (ConfigError, "1 parameters")),
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
def test_a_state_that_is_kept_is_that_of_one_optimizer(what: str):
    make = having(configure_optimizers=KEPT[what])
    w = play(make, One(), optimizer_state="keep")
    torch.testing.assert_close(w, vector(by_hand(make, One(), keep=True)), rtol=0, atol=1e-6)
    assert not torch.allclose(w, vector(by_hand(make, One())), atol=1e-6)


def test_a_state_that_no_checkpoint_could_hold_is_refused(tmp_path: Path):
    module = seeded(having(configure_optimizers=lambda m: Listing(m.parameters(), lr=RATE)))
    with refused(ConfigError, "Listing", "'history'"):
        fit(module, tmp_path / "run", data=One(), optimizer_state="keep")


def scaled(m: nn.Module, scale: float = 1.0) -> torch.optim.Optimizer:
    weight = {"params": [m.net.weight], "lr": RATE * getattr(m.net.weight, "lr_scale", scale)}
    return torch.optim.SGD([weight, {"params": [m.net.bias]}], lr=RATE)


@pytest.mark.filterwarnings("ignore")
def test_attributes_of_parameters_are_those_of_the_copy_too(tmp_path: Path):
    module = seeded(having(lambda m: setattr(m.net.weight, "lr_scale", 0.1), configure_optimizers=scaled))
    w, _ = fit(module, tmp_path / "run", data=One())
    plain = having(configure_optimizers=lambda m: scaled(m, 0.1))
    torch.testing.assert_close(w, vector(by_hand(plain, One())), rtol=0, atol=1e-6)


LOST = {
    "a hook of a parameter": (
        having(lambda m: m.net.weight.register_hook(lambda grad: 0 * grad)),
        (ConfigError, "net.weight"),
    ),
    "a hook after gradients": (
        having(lambda m: m.net.weight.register_post_accumulate_grad_hook(lambda p: None)),
        (ConfigError, "net.weight"),
    ),
    "layers in a list": (
        having(
            lambda m: setattr(m, "heads", [nn.Linear(4, 4)]),
            configure_optimizers=lambda m: torch.optim.SGD([*m.parameters(), *m.heads[0].parameters()], lr=RATE),
        ),
        (ConfigError, "2 parameters", "[4, 4]", "ModuleList"),
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
    with refused(ConfigError, "2 parameters"):
        fit(module, tmp_path / "run", data=One())
