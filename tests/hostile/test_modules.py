"""Users' modules that cannot be trained as they are, and some that can: a run of each, in this process."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreigners import AsksTrainer, Lazy, Manual, Named, SecondOrder, TwoOptimizers, Unvalidated
from strangers import by_hand, fit, fit_in_each_way, having, seeded, stepping
from torch import nn

from fedlit.core.errors import ConfigError, TrainingError


@dataclass(frozen=True)
class Module:
    """A module with a mistake, and the words of its error.

    Attributes:
        what: Short description of the mistake, the name of the test.
        make: Makes the module.
        words: Parts of the message.
        early: Whether it is refused before there is a run.
    """

    what: str
    make: Callable[[], Any]
    words: tuple[str, ...]
    early: bool = False


def raises(error: BaseException) -> Any:
    raise error


def scoring(output: Callable[[int], Any]) -> type:
    return type("Strange", (Named,), {"validation_step": lambda module, batch, batch_idx: output(len(batch[0]))})


def optimizing(configure: Callable[[nn.Module], Any]) -> type:
    return having(configure_optimizers=configure)


def averaged(module, loss, batch):
    module.mean = 0.9 * module.mean + 0.1 * batch[0].mean()
    return loss * (1 + module.mean)


def replaced(module, loss, batch):
    module.net.weight = nn.Parameter(module.net.weight.detach().clone())
    return loss


def pointed(module, loss, batch):
    module.net.weight.data = module.net.weight.data.clone()
    return loss


def frozen_later(module, loss, batch):
    module.net.bias.requires_grad_(False)
    return loss


def of_steps(name: str, change: Callable, words: tuple[str, ...], start: Callable = lambda module: None) -> Module:
    return Module(name, stepping(change, start), words)


LOSS = "expected at every step the loss, a tensor with one element"
ONE_DTYPE = "expected parameters of torch.float32 or torch.float64, found torch."
OWN_EXIT = "raise an exception instead"

REFUSED = [
    of_steps("a loss that is a float", lambda m, loss, b: float(loss), ("returned a float", LOSS)),
    of_steps("a loss that is a text", lambda m, loss, b: "0.5", ("returned a str", LOSS)),
    of_steps("a loss that is a tuple", lambda m, loss, b: (loss, loss), ("returned a tuple", LOSS)),
    of_steps("a loss that is a vector", lambda m, loss, b: loss.expand(3), ("of shape (3,)", "take its mean")),
    of_steps("a loss that is detached", lambda m, loss, b: loss.detach(), ("without a graph", LOSS)),
    of_steps("a loss of integers", lambda m, loss, b: torch.tensor(1), ("without a graph", LOSS)),
    of_steps("a complex loss", lambda m, loss, b: loss * 1j, ("torch.complex64", "take its real part")),
    of_steps("no loss", lambda m, loss, b: None, ("returned no loss (None)", LOSS)),
    of_steps("a dict without a loss", lambda m, loss, b: {"los": loss}, ("a dict without 'loss'", "'los'")),
    of_steps("a dict whose loss is none", lambda m, loss, b: {"loss": None}, ("returned no loss (None)",)),
    of_steps("a loss that is nan", lambda m, loss, b: loss * torch.nan, ("local step 1: the loss is nan", "site-0")),
    of_steps("a loss of no weights", lambda m, loss, b: torch.zeros((), requires_grad=True) * 1,
        ("every gradient is zero",)),
    of_steps("a loss times zero", lambda m, loss, b: loss * 0, ("does not train", "every gradient is zero")),
    of_steps("backward in the step", lambda m, loss, b: loss.backward() or loss, ("has called backward",)),
    of_steps("a text that is logged", lambda m, loss, b: m.log("x", "good") or loss, ("logs 'x' as a str ('good')",)),
    of_steps("none that is logged", lambda m, loss, b: m.log("x", None) or loss, ("logs 'x' as a NoneType",)),
    of_steps("a list that is logged", lambda m, loss, b: m.log("x", [1, 2]) or loss, ("logs 'x' as a list",)),
    of_steps("a vector that is logged", lambda m, loss, b: m.log("x", torch.ones(3)) or loss, ("'x'", "of shape (3,)")),
    of_steps("a number as a name", lambda m, loss, b: m.log(3, 1.0) or loss, ("under 3; expected a name",)),
    of_steps("sys exit with 0", lambda m, loss, b: sys.exit(0), ("called sys.exit(0)", "'site-0'", OWN_EXIT)),
    of_steps("sys exit with 3", lambda m, loss, b: sys.exit(3), ("called sys.exit(3)", __file__, OWN_EXIT)),
    of_steps("a parameter that is replaced", replaced, ("parameter net.weight was replaced", "copy_")),
    of_steps("data that are replaced", pointed, ("parameter net.weight was replaced", "copy_")),
    of_steps("a parameter frozen in a step", frozen_later, ("parameter net.bias was frozen", "in __init__")),
    of_steps("a buffer of another shape", lambda m, loss, b: setattr(m, "kept", torch.zeros(3)) or loss,
             ("buffer kept became shape (3,)",), lambda m: m.register_buffer("kept", torch.zeros(2))),
    Module("a step of the trainer", AsksTrainer, ("self.trainer.max_epochs",)),
    Module("sys exit in validation", scoring(lambda n: sys.exit(0)), ("called sys.exit(0)", OWN_EXIT)),
    Module("logits too few", scoring(lambda n: torch.zeros(n, 3)), ("shape (2, 3)", "(2, 4)", "validation_step")),
    Module("logits without columns", scoring(lambda n: torch.zeros(n)), ("shape (2,)", "(2, 4)")),
    Module("logits of other rows", scoring(lambda n: torch.zeros(n + 1, 4)), ("shape (3, 4)", "(2, 4)")),
    Module("complex logits", scoring(lambda n: torch.zeros(n, 4) * 1j), ("torch.complex64", "real scores")),
    Module("weights of half precision", having(lambda m: m.half()), (ONE_DTYPE, "bf16-mixed"), early=True),
    Module("weights of bfloat16", having(lambda m: m.bfloat16()), (ONE_DTYPE, "bf16-mixed"), early=True),
    Module("complex weights", having(lambda m: m.net.to(torch.cfloat)), (ONE_DTYPE, "real and imaginary"), early=True),
    Module("weights of float64", having(lambda m: m.double()), ("torch.float64", "64-true", "float()")),
    Module("weights of two precisions", having(lambda m: setattr(m, "b", nn.Linear(2, 2).double())),
           ("one dtype", "(net.weight)", "torch.float64 (b.weight)"), early=True),
    *(Module(f"a buffer of {kind}", having(lambda m, kind=kind: m.register_buffer("kept", torch.ones(3, dtype=kind))),
             (f"for the buffer kept, found {kind}", "torch.float32"), early=True)
      for kind in (torch.float64, torch.float16, torch.bfloat16)),
    Module("no parameters", having(lambda m: setattr(m, "net", nn.Identity())), ("none at all",), early=True),
    Module("frozen parameters alone", having(lambda m: m.requires_grad_(False)), ("all 2 are frozen",), early=True),
    Module("a layer that is lazy", Lazy, ("shape of net.weight is unknown",), early=True),
    Module("manual optimization", Manual, ("automatic_optimization = False", "return the loss"), early=True),
    Module("two optimizers", TwoOptimizers, ("returned 2 optimizers, not one",), early=True),
    Module("an optimizer with a closure", SecondOrder, ("found a closure",), early=True),
    Module("no optimizer", optimizing(lambda m: None), ("returned NoneType; expected an optimizer",), early=True),
    Module("an empty list of optimizers", optimizing(lambda m: []), ("returned 0 optimizers",), early=True),
    Module("an optimizer of other weights", optimizing(lambda m: torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)),
           ("its optimizer has 2 parameters that are not the module's",), early=True),
    Module("a layer instead of a module", lambda: nn.Linear(2, 2), ("expected a LightningModule, found "
        "Linear",), early=True),
    Module("a constructor without super", type("Strange", (Unvalidated,), {"__init__": lambda m: None}),
           ("expected a call of super().__init__()",), early=True),
    Module("an open file", having(lambda m: setattr(m, "file", sys.__stderr__)), ("attribute file",), early=True),
    Module("a lock", having(lambda m: setattr(m, "lock", threading.Lock())), ("attribute lock",), early=True),
    Module("classes that are a text", type("Strange", (Named,), {"classes": "abcd"}), ("found 'abcd'",), early=True),
    Module("classes that are a number", type("Strange", (Named,), {"classes": 4}), ("found 4",), early=True),
    Module("a class that is there twice", type("Strange", (Named,), {"classes": ("a", "b", "a", "c")}),
           ("found 'a' twice",), early=True),
    Module("what cannot be copied", having(__reduce_ex__=lambda m, v: raises(TypeError("no way"))),
           ("Strange cannot be copied: no way",), early=True),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", REFUSED, ids=[given.what.replace(" ", "-") for given in REFUSED])
def test_it_is_refused_in_words(given: Module, tmp_path: Path):
    with pytest.raises((ConfigError, TrainingError, AttributeError)) as caught:
        fit(seeded(given.make), tmp_path / "run")
    said = str(caught.value)
    assert [word for word in given.words if word not in said] == [], said
    assert isinstance(caught.value, ConfigError) == given.early
    if given.early:
        assert not (tmp_path / "run").exists()


def grid(module, loss, batch):
    if module.grid is None:
        module.grid = torch.arange(4)
    return loss


def left_behind(module, loss, batch):
    module.features, module.latest, module.losses = batch[0].flatten(1), float(loss), {"latest": loss}
    return loss


def printed(module, loss, batch):
    module.print("hello")
    assert module.logger is None
    assert module.loggers == []
    return loss


ACCEPTED = [
    ("a loss with one element", stepping(lambda m, loss, b: loss[None])),
    ("gradients set to none", stepping(lambda m, loss, b: m.zero_grad() or loss)),
    ("gradients set to zero", stepping(lambda m, loss, b: m.zero_grad(set_to_none=False) or loss)),
    ("a mean in a buffer", stepping(averaged, lambda m: m.register_buffer("mean", torch.zeros(())))),
    ("what a step leaves behind", stepping(left_behind)),
    ("a grid made once", stepping(grid, lambda m: setattr(m, "grid", None))),
    ("a list of parameters", having(lambda m: setattr(m, "trained", [m.net.weight, m.net.weight.data]))),
    ("a parameter in two places", having(lambda m: setattr(m, "again", m.net))),
    ("a rate of zero", optimizing(lambda m: torch.optim.SGD(m.parameters(), lr=0.0))),
    ("one parameter optimized", optimizing(lambda m: torch.optim.SGD([m.net.bias], lr=0.1))),
    ("logits of integers", scoring(lambda n: torch.zeros(n, 4, dtype=torch.long))),
    ("nothing to score", scoring(lambda n: None)),
    ("a loss instead of scores", scoring(lambda n: torch.tensor(0.5))),
    ("a line that is printed", stepping(printed)),
    ("a number of numpy that is logged", stepping(lambda m, loss, b: m.log("x", np.float32(1)) or loss)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("what", "make"), ACCEPTED, ids=[what.replace(" ", "-") for what, _ in ACCEPTED])
def test_it_trains(what: str, make: Callable, tmp_path: Path):
    module = seeded(make)
    start = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    w, _ = fit(module, tmp_path / "run")
    assert torch.isfinite(w).all()
    assert torch.equal(w, start) == (what == "a rate of zero")


SILENT = {"a line that is printed", "a number of numpy that is logged"}
"""What logs or prints, which takes a federation."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("what", "make"), ACCEPTED, ids=[what.replace(" ", "-") for what, _ in ACCEPTED])
def test_it_trains_to_what_a_loop_by_hand_does_in_one_process_in_two_and_in_two_halves(what, make, tmp_path: Path):
    w = fit_in_each_way(make, tmp_path)
    if what not in SILENT:
        torch.testing.assert_close(w, by_hand(seeded(make)), rtol=0, atol=1e-6)
