"""`fedlit.testing.check_module` is the probe of a run with more steps."""

import copy

import pytest
import torch
from foreigners import Digits
from strangers import having, seeded, stepping

from fedlit.testing import check_module

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_plain_module_passes_and_stays_as_it_is():
    module = seeded(having(lambda m: m.register_buffer("mean", torch.zeros(()))))
    before = copy.deepcopy(module.state_dict())
    check_module(module, Digits())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def late(module, loss, batch):
    module.steps += module.global_step >= 8
    return loss / (1 + module.steps)


def test_a_state_that_matters_late_is_found():
    module = seeded(stepping(late, lambda m: setattr(m, "steps", 0)))
    check_module(module, Digits(), steps=2)
    with pytest.raises(AssertionError, match=r"Strange\.steps"):
        check_module(module, Digits())
    assert module.steps == 0
