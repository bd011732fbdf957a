"""Users' modules that cannot be trained as they are, and some that can: a run of each, in this process."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreigners import Digits, Lazy, Manual, Named, TwoOptimizers, Unvalidated
from refusals import refused
from strangers import fit, fit_in_each_way, having, seeded, stepping
from torch import nn
from torch.nn import functional as F

import fedlit
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.schedules import ConstantSchedule

pytestmark = pytest.mark.filterwarnings("ignore")


def raises(error: BaseException) -> Any:
    raise error


def scoring(output: Callable[[int], Any]) -> type:
    return type("Strange", (Named,), {"validation_step": lambda module, batch, batch_idx: output(len(batch[0]))})


def optimizing(configure: Callable[[nn.Module], Any]) -> type:
    return having(configure_optimizers=configure)


def replaced(module, loss, batch):
    module.net.weight = nn.Parameter(module.net.weight.detach().clone())
    return loss


def pointed(module, loss, batch):
    module.net.weight.data = module.net.weight.data.clone()
    return loss


def frozen_later(module, loss, batch):
    module.net.bias.requires_grad_(False)
    return loss


def of_steps(change: Callable, *names: str, start: Callable = lambda module: None) -> tuple:
    return stepping(change, start), (TrainingError, *names)


def early(make: Callable[[], Any], *names: str) -> tuple:
    """Make a row of a module that is refused before there is a run."""
    return make, (ConfigError, *names)


OWN_EXIT = "raise an exception instead"

REFUSED = {
    "a loss that is a float": of_steps(lambda m, loss, b: float(loss), "a float", "a tensor with one element"),
    "a loss that is a vector": of_steps(lambda m, loss, b: loss.expand(3), "shape (3,)"),
    "a loss that is detached": of_steps(lambda m, loss, b: loss.detach(), "without a graph"),
    "a complex loss": of_steps(lambda m, loss, b: loss * 1j, "torch.complex64"),
    "no loss": of_steps(lambda m, loss, b: None, "None"),
    "a dict without a loss": of_steps(lambda m, loss, b: {"los": loss}, "'loss'", "'los'"),
    "a loss that is nan": of_steps(lambda m, loss, b: loss * torch.nan, "site-0", "local step 1", "nan"),
    "a loss of no weights": of_steps(lambda m, loss, b: torch.zeros((), requires_grad=True) * 1, "gradient"),
    "a loss times zero": of_steps(lambda m, loss, b: loss * 0, "gradient"),
    "backward in the step": of_steps(lambda m, loss, b: loss.backward() or loss, "backward"),
    "a text that is logged": of_steps(lambda m, loss, b: m.log("x", "good") or loss, "'x'", "'good'"),
    "a vector that is logged": of_steps(lambda m, loss, b: m.log("x", torch.ones(3)) or loss, "'x'", "shape (3,)"),
    "a number as a name": of_steps(lambda m, loss, b: m.log(3, 1.0) or loss, "under 3"),
    "sys exit": of_steps(lambda m, loss, b: sys.exit(3), "sys.exit(3)", "'site-0'", __file__, OWN_EXIT),
    "a parameter that is replaced": of_steps(replaced, "net.weight", "copy_"),
    "data that are replaced": of_steps(pointed, "net.weight", "copy_"),
    "a parameter frozen in a step": of_steps(frozen_later, "net.bias", "in __init__"),
    "a buffer of another shape": of_steps(
        lambda m, loss, b: setattr(m, "kept", torch.zeros(3)) or loss, "buffer kept", "shape (3,)",
        start=lambda m: m.register_buffer("kept", torch.zeros(2))),
    "sys exit in validation": (scoring(lambda n: sys.exit(0)), (TrainingError, "sys.exit(0)", OWN_EXIT)),
    "logits too few": (scoring(lambda n: torch.zeros(n, 3)), (TrainingError, "(2, 3)", "(2, 4)", "validation_step")),
    "logits of other rows": (scoring(lambda n: torch.zeros(n + 1, 4)), (TrainingError, "(3, 4)", "(2, 4)")),
    "complex logits": (scoring(lambda n: torch.zeros(n, 4) * 1j), (TrainingError, "torch.complex64")),
    "weights of half precision": early(having(lambda m: m.half()), "torch.float16", "bf16-mixed"),
    "complex weights": early(having(lambda m: m.net.to(torch.cfloat)), "torch.complex64"),
    "weights of float64": (having(lambda m: m.double()), (TrainingError, "torch.float64", "64-true")),
    "weights of two precisions": early(having(lambda m: setattr(m, "b", nn.Linear(2, 2).double())), "(net.weight)",
        "torch.float64 (b.weight)"),
    "a buffer of float64": early(having(lambda m: m.register_buffer("kept", torch.ones(3).double())), "buffer kept",
        "torch.float64"),
    "no parameters": early(having(lambda m: setattr(m, "net", nn.Identity())), "none at all"),
    "frozen parameters alone": early(having(lambda m: m.requires_grad_(False)), "all 2 are frozen"),
    "a layer that is lazy": early(Lazy, "net.weight"),
    "manual optimization": early(Manual, "automatic_optimization"),
    "two optimizers": early(TwoOptimizers, "2 optimizers"),
    "no optimizer": early(optimizing(lambda m: None), "NoneType"),
    "a constructor without super": early(type("Strange", (Unvalidated,), {"__init__": lambda m: None}), "super()"),
    "a lock": early(having(lambda m: setattr(m, "lock", threading.Lock())), "attribute lock"),
    "classes that are a text": early(type("Strange", (Named,), {"classes": "abcd"}), "'abcd'"),
    "a class that is there twice": early(type("Strange", (Named,), {"classes": ("a", "b", "a", "c")}), "'a' twice"),
    "what cannot be copied": early(having(__reduce_ex__=lambda m, v: raises(TypeError("no way"))), "no way"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name(what: str, tmp_path: Path):
    make, mistake = REFUSED[what]
    with refused(*mistake):
        fit(seeded(make), tmp_path / "run")
    assert mistake[0] is TrainingError or not (tmp_path / "run").exists()


def printed(module, loss, batch):
    module.print("hello")
    assert module.logger is None
    assert module.loggers == []
    return loss


ACCEPTED = {
    "a rate of zero": optimizing(lambda m: torch.optim.SGD(m.parameters(), lr=0.0)),
    "one parameter optimized": optimizing(lambda m: torch.optim.SGD([m.net.bias], lr=0.1)),
    "logits of integers": scoring(lambda n: torch.zeros(n, 4, dtype=torch.long)),
    "nothing to score": scoring(lambda n: None),
    "a loss instead of scores": scoring(lambda n: torch.tensor(0.5)),
    "a line that is printed": stepping(printed),
    "a number of numpy that is logged": stepping(lambda m, loss, b: m.log("x", np.float32(1)) or loss),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_it_trains(what: str, tmp_path: Path):
    module = seeded(ACCEPTED[what])
    start = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    w, _ = fit(module, tmp_path / "run", rounds=1)
    assert torch.isfinite(w).all()
    assert torch.equal(w, start) == (what == "a rate of zero")


class Renorm(nn.BatchNorm1d):
    """Computes with the count of its batches."""

    def forward(self, images):
        return super().forward(images) / self.num_batches_tracked


def normalised(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def evaluating(module, loss, batch):
    module.net[1].eval()
    return F.cross_entropy(module.net(batch[0].flatten(1)), batch[1])


KEPT = {
    "a count of a norm of one's own": having(lambda m: setattr(m, "net", nn.Sequential(nn.Linear(16, 4), Renorm(4)))),
    "a layer that a step puts into evaluation mode": stepping(evaluating, normalised),
}


@pytest.mark.parametrize("what", KEPT)
def test_each_client_has_its_own_buffers_in_two_processes_and_in_two_halves(what: str, tmp_path: Path):
    fit_in_each_way(KEPT[what], tmp_path)


def moved(module, loss, batch):
    module.mean += 1
    return loss


@pytest.mark.parametrize(
    "body", [{}, {"state_dict": lambda m, *given, **named: {}}], ids=["as it is", "own state_dict"]
)
def test_the_model_that_is_returned_has_buffers_that_no_state_dict_holds(body: dict, tmp_path: Path):
    make = stepping(moved, lambda m: m.register_buffer("mean", torch.zeros(()), persistent=False), **body)
    options = {"rounds": 2, "schedule": ConstantSchedule(2, "steps"), "workers": 1, "logger": False}
    fitted = fedlit.fit(seeded(make), Digits(), run_dir=tmp_path, **options)
    assert float(fitted.model.mean) == 4
