"""Each examination has a name, advice, and a module that it stops; `fedlit list checks` shows them all."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from awkward import Wrapped
from foreigners import Digits
from refusals import refused
from strangers import fit, having, seeded
from torch import nn
from torch.utils.data import Dataset

from fedlit.core.errors import ConfigError
from fedlit.core.flat import FlatModel
from fedlit.federation.examinations import EVERY, OF_MODULES, Examination, NewOptimizer

WRONG = {
    "class": lambda: nn.Linear(2, 2),
    "automatic optimization": having(lambda m: setattr(m, "automatic_optimization", False)),
    "steps": having(training_step=lambda m, dataloader_iter: None),
    "hooks of the trainer": having(backward=lambda m, loss: loss.backward()),
    "lazy layers": having(lambda m: setattr(m, "late", nn.LazyLinear(3))),
    "hooks of parameters": having(lambda m: m.net.weight.register_hook(lambda grad: grad)),
    "types of buffers": having(lambda m: m.register_buffer("scale", torch.ones(2, dtype=torch.float64))),
}


@pytest.mark.parametrize("examination", OF_MODULES, ids=lambda each: each.name)
def test_each_stops_what_it_is_for_and_nothing_else(examination: Examination):
    wrong = seeded(WRONG[examination.name])
    assert examination.problem(wrong)
    before = OF_MODULES[: OF_MODULES.index(examination)]
    assert not any(each.problem(wrong) for each in before)
    module = seeded(having())
    held = {name: value.clone() for name, value in module.state_dict().items()}
    assert not examination.problem(module)
    assert all(torch.equal(value, held[name]) for name, value in module.state_dict().items())


def test_the_optimizer_of_the_module_is_examined_on_its_flat_model():
    examination = NewOptimizer()
    assert examination.problem(FlatModel(seeded(having()))) == ""
    frozen = having(configure_optimizers=lambda m: m.net.requires_grad_(False) and torch.optim.SGD(m.parameters(), 0.1))
    assert "freezes the parameter net.weight" in examination.problem(FlatModel(seeded(frozen)))


def test_the_list_shows_names_and_advice(fedlit_cli):
    out = fedlit_cli("list checks").succeeded()
    words = " ".join(out.split())
    assert [examination.name for examination in EVERY if examination.name not in words] == []
    assert len({examination.name for examination in EVERY}) == len(EVERY)
    assert {type(each) for each in EVERY} - {type} == set(Examination.__subclasses__())


class Rereading(Wrapped):
    """The examples of another data set, each with a number added that follows from what it says of the read."""

    def __init__(self, examples: Dataset, what: str) -> None:
        super().__init__(examples)
        self.what, self.reads, self.own = what, 0, torch.Generator().manual_seed(3)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = super().__getitem__(number)
        self.reads += 1
        added = {
            "the default generators": torch.rand(()) + np.random.rand() + random.random(),
            "its reads": float(self.reads),
            "a generator of its own": torch.rand((), generator=self.own),
        }[self.what]
        return image + added, label


class InBatches(Wrapped):
    """A data set that only returns batches."""

    __getitem__ = None

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.dataset[indices]


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_that_gives_batches_alone_trains_as_any_other(tmp_path: Path):
    class Batched(Digits):
        def _part(self, seed: int) -> InBatches:
            return InBatches(super()._part(seed))

    one, other = (fit(seeded(having()), tmp_path / d.__name__, data=d(val=False))[0] for d in (Digits, Batched))
    assert torch.equal(one, other)


class Reread(Digits):
    """Two clients whose data sets are one object."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        shared = Rereading(self._part(0), self.what)
        for name in ("site-0", "site-1"):
            self.clients[name] = replace(self.clients[name], train=shared)


@pytest.mark.filterwarnings("ignore")
def test_examples_that_follow_the_default_generators_train_to_the_same_with_two_workers(tmp_path: Path):
    data = Reread("the default generators")
    one, two = (fit(seeded(having()), tmp_path / str(n), data=data, workers=n)[0] for n in (1, 2))
    assert torch.equal(one, two)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["its reads", "a generator of its own"])
def test_a_data_set_with_a_state_of_its_own_is_refused(what, tmp_path: Path):
    with refused(ConfigError, "client 'site-0'", "training example 0", "Rereading"):
        fit(seeded(having()), tmp_path / "run", data=Reread(what))
    assert not (tmp_path / "run").exists()
