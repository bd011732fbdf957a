"""State that cannot be seen in a run, and that `fedlit.testing.check_module` finds."""

import copy

import pytest
import torch
from foreigners import Digits
from strangers import having, seeded, stepping

from fedlit.testing import check_module

pytestmark = pytest.mark.filterwarnings("ignore")


def closing_over():
    steps = []

    def step(module, loss, batch):
        steps.append(1)
        return loss * (1 + 0.1 * len(steps))

    return step


def test_a_plain_module_passes_and_stays_as_it_is():
    module = seeded(having(lambda m: m.register_buffer("mean", torch.zeros(()))))
    before = copy.deepcopy(module.state_dict())
    check_module(module, Digits())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_a_variable_that_a_function_closes_over_is_found():
    module = seeded(stepping(closing_over()))
    with pytest.raises(
        AssertionError, match=r"trained again in the same process it has other weights .off by 0"
    ) as caught:
        check_module(module, Digits())
    assert "trained in 2 processes it has other weights" in str(caught.value)
    assert "stopped and resumed it has other weights" in str(caught.value)
