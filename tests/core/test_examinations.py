"""Each examination has a name, advice, and a module that it stops; `fedlit list checks` shows them all."""

import pytest
import torch
from strangers import having, seeded
from torch import nn

from fedlit.core.examinations import OF_MODULES, OF_OPTIMIZERS, Examination, check_module

EVERY = (*OF_MODULES, *OF_OPTIMIZERS)


class Cubed(torch.optim.SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.mul_(p.grad.square().sum())
        return super().step(closure)


def tied(m: nn.Module) -> None:
    m.other = nn.Linear(16, 4)
    m.other.weight.data = m.net.weight.data


WRONG = {
    "class": lambda: nn.Linear(2, 2),
    "automatic optimization": having(lambda m: setattr(m, "automatic_optimization", False)),
    "steps": having(training_step=lambda m, dataloader_iter: None),
    "hooks of the trainer": having(backward=lambda m, loss: loss.backward()),
    "lazy layers": having(lambda m: setattr(m, "late", nn.LazyLinear(3))),
    "hooks of parameters": having(lambda m: m.net.weight.register_hook(lambda grad: grad)),
    "shared memory": having(tied),
    "optimizer": having(configure_optimizers=lambda m: Cubed(m.parameters(), lr=0.1)),
}


@pytest.mark.parametrize("examination", EVERY, ids=lambda each: each.name)
def test_each_stops_what_it_is_for_and_nothing_else(examination: Examination):
    wrong = seeded(WRONG[examination.name])
    assert examination.found(wrong)
    before = EVERY[: EVERY.index(examination)]
    assert not any(each.found(wrong) for each in before)
    assert not examination.found(seeded(having()))


def test_an_ordinary_module_passes_them_all_and_stays_as_it_is():
    module = seeded(having())
    held = {name: value.clone() for name, value in module.state_dict().items()}
    check_module(module, EVERY)
    assert all(torch.equal(value, held[name]) for name, value in module.state_dict().items())


def test_the_list_shows_names_and_advice(fedlit_cli):
    code, out, _ = fedlit_cli("list checks")
    assert code == 0
    words = " ".join(out.split())
    for examination in EVERY:
        assert examination.name in words
        assert examination.advice.split()[0] in words
    assert len({examination.name for examination in EVERY}) == len(WRONG) == len(EVERY)
