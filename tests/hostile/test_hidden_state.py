"""State that a look at plain attributes did not find, each with one process unlike two, and layers that a step
changes."""

import copy
import itertools
from array import array
from pathlib import Path

import pytest
import torch
from foreigners import Digits, Unvalidated
from refusals import refused
from strangers import fit, fit_in_each_way, having, seeded, stepping
from torch import nn
from torch.nn import functional as F

import fedlit
from fedlit.schedules import ConstantSchedule

pytestmark = pytest.mark.filterwarnings("ignore")


class Slotted:
    """A function that keeps a number where there is no dictionary."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Called:
    """A function with a memory."""

    __init__, __call__ = Slotted.__init__, Slotted.__call__


REGISTER = {"n": 0}


def registered() -> int:
    REGISTER["n"] += 1
    return REGISTER["n"]


class OfFunction(Unvalidated):
    """Calls a function that counts in a global."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) / registered()


def divided(module, loss, batch):
    return loss / module.count()


def appended(module, loss, batch):
    module.seen.append(1)
    return loss / len(module.seen)


def taught(module, loss, batch):
    teacher = module.others[0]
    with torch.no_grad():
        teacher.weight.lerp_(module.net.weight, 0.3)
    images = batch[0].flatten(1)
    return loss + F.mse_loss(module.net(images), teacher(images))


def normed(module, loss, batch):
    module.others[0](batch[0].flatten(1))
    return loss * (1 + module.others[0].running_mean.abs().mean())


def registering(module, loss, batch):
    if not hasattr(module, "late"):
        module.register_buffer("late", torch.zeros((), dtype=torch.long))
    module.late += 1
    return loss / module.late


def making(module, loss, batch):
    if "extra" not in module._modules:
        module.extra = nn.BatchNorm1d(16)
    return loss + F.cross_entropy(module.net(module.extra(batch[0].flatten(1))), batch[1])


def dropped_more(module, loss, batch):
    module.net[1].p += 0.05
    return F.cross_entropy(module.net(batch[0].flatten(1)), batch[1])


def with_dropout(module) -> None:
    module.net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 4))


def others(layer):
    return lambda m: setattr(m, "others", [layer(m)])


REFUSED = {
    "slots": (stepping(divided, lambda m: setattr(m, "count", Slotted())), ("Strange.count",)),
    "an object that is called": (stepping(divided, lambda m: setattr(m, "count", Called())), ("Strange.count",)),
    "an array": (stepping(appended, lambda m: setattr(m, "seen", array("i"))), ("Strange.seen",)),
    "bytes": (stepping(appended, lambda m: setattr(m, "seen", bytearray())), ("Strange.seen",)),
    "a function of the file": (OfFunction, ("REGISTER of the module test_hidden_state",)),
    "a teacher in a list": (
        stepping(taught, others(lambda m: copy.deepcopy(m.net))), ("Strange.others.0.weight", "weights as buffers"),
    ),
    "a norm in a list": (stepping(normed, others(lambda m: nn.BatchNorm1d(16))), ("Strange.others.0.",)),
    "a rate of dropout": (stepping(dropped_more, with_dropout), ("Strange.net.1.p",)),
    "a late buffer": (stepping(registering), ("Strange.late",)),
    "a late layer": (stepping(making), ("Strange.extra",)),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_words(what: str, tmp_path: Path):
    make, said = REFUSED[what]
    with refused("structure-changed" if "late" in what else "state-in-attributes", *said):
        fit(seeded(make), tmp_path / "run")


def test_an_iterator_is_refused_before_training(tmp_path: Path):
    make = stepping(lambda m, loss, b: loss / (1 + next(m.numbers)), lambda m: setattr(m, "numbers", itertools.count()))
    with refused("check-iterators", "Strange.numbers"):
        fit(seeded(make), tmp_path / "run")


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
def test_each_client_has_its_own_and_a_resumed_run_too(what: str, tmp_path: Path):
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
